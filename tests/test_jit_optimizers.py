"""Whole training steps: every stock optimizer against its eager twin, bit for bit, and its numbers as inputs."""

from __future__ import annotations

import collections
import contextvars
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import Twins, assert_same, jit, training

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "sgd nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "sgd maximize": lambda p: torch.optim.SGD(p, lr=0.1, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam capturable": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw amsgrad foreach": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "rmsprop centered": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5, weight_decay=0.1),
    "rmsprop foreach": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    "adagrad foreach": lambda p: torch.optim.Adagrad(p, lr=0.1, foreach=True),
}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3), torch.randn(4, 2)


def twins(make: Callable[..., torch.optim.Optimizer], **options: Any) -> Twins:
    torch.manual_seed(7)
    net = model()
    return Twins(training, net, make(net.parameters()), **options)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_leaves_what_eager_leaves(name: str) -> None:
    pair = twins(OPTIMIZERS[name])
    pair.calls(6, batch)
    assert pair.statistics.replays == 5


@pytest.mark.parametrize("name", ["adadelta", "adamax", "nadam", "radam", "asgd", "rprop", "adafactor", "muon"])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_rarer_optimizer_is_right_whether_it_records_or_not(name: str, foreach: bool) -> None:
    cls = {cls.__name__.lower(): cls for cls in vars(torch.optim).values() if isinstance(cls, type)}.get(name)
    if cls is None:
        pytest.skip(f"this torch has no {name}")
    if name == "adafactor" and torch.cuda.is_available() and torch.__version__ < "2.12":
        pytest.skip("eager Adafactor of this torch raises KeyError: 'capturable' where there is a GPU")
    options: dict[str, Any] = {} if name == "muon" else {"foreach": foreach}
    net = nn.Linear(3, 2, bias=False)
    pair = Twins(training, net, cls(net.parameters(), lr=0.01, **options), on_refusal="eager")
    pair.calls(5, batch)


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_a_fused_optimizer_is_right_or_refused_with_a_line(cls: Any) -> None:
    pair = twins(lambda p: cls(p, lr=0.01, fused=True))
    try:
        pair.calls(5, batch)
    except treeplay.Refusal as refusal:
        assert refusal.where is not None and "optimizer.step()" in refusal.where.source and refusal.advice


Numbers = dict[str, Callable[[int], Any]]
FUSED: dict[str, tuple[Callable[..., torch.optim.Optimizer], Numbers]] = {
    "sgd": (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.1, fused=True),
        dict.fromkeys(("momentum", "dampening", "weight_decay"), lambda call: 0.9 / (call + 1)),
    ),
    "adam": (
        lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, amsgrad=True, fused=True),
        {"betas": lambda call: (0.9 / (call + 1), 1 - 0.1 / (call + 1)), "weight_decay": lambda call: 0.1 / (call + 1)},
    ),
    "adamw": (
        lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
        {"lr": lambda call: 0.1 / (call + 1), "betas": lambda call: (0.9 / (call + 1), 0.99)},
    ),
    "adamw, a tensor for its rate": (
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), fused=True),
        dict.fromkeys(("eps", "weight_decay"), lambda call: 0.1 / (call + 1)),
    ),
    "adagrad": (
        lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.1, fused=True),
        dict.fromkeys(("lr", "eps", "lr_decay", "weight_decay"), lambda call: 0.1 / (call + 1)),
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_each_number_of_a_fused_optimizer_is_an_input(name: str) -> None:
    make, numbers = FUSED[name]
    pair = twins(make)
    for call in range(6):
        for owners in (pair.owners, pair.eager_owners):
            owners[1].param_groups[0].update({key: of(call) for key, of in numbers.items()})
        pair.call(*batch())
    assert pair.statistics.recordings == 1


@pytest.mark.compile
@pytest.mark.parametrize("name", FUSED)
def test_each_number_of_a_fused_optimizer_is_an_input_of_compiled_code(name: str) -> None:
    make, numbers = FUSED[name]
    pair = twins(make, lower="inductor")
    for call in range(6):
        for owners in (pair.owners, pair.eager_owners):
            owners[1].param_groups[0].update({key: of(call) for key, of in numbers.items()})
        x, y = batch()
        torch.testing.assert_close(pair.step(x, y), pair.eager(x, y))
        for mine, theirs in zip(pair.owners[0].parameters(), pair.eager_owners[0].parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert pair.statistics.recordings == 1


def test_a_fused_optimizers_weight_decay_that_comes_and_goes_has_two_recordings() -> None:
    pair = twins(lambda p: torch.optim.SGD(p, lr=0.1, fused=True))
    for call in range(12):
        for owners in (pair.owners, pair.eager_owners):
            owners[1].param_groups[0]["weight_decay"] = 0.1 * (call // 2 % 2)
        pair.call(*batch())
    assert pair.statistics.recordings == 2


def test_an_optimizer_that_decides_on_its_step_is_refused_with_what_can_be_done_on_any_device() -> None:
    net, twin = model(), model()
    twin.load_state_dict(net.state_dict())
    ours, theirs = (torch.optim.RAdam(each.parameters(), lr=0.01) for each in (net, twin))
    other = model()
    whole = jit(training(other, torch.optim.RAdam(other.parameters())))
    whole(*batch())
    with pytest.raises(treeplay.Refusal, match="call its step outside of the program"):
        whole(*batch())

    @jit
    def gradients(x: torch.Tensor, y: torch.Tensor) -> None:
        net.zero_grad()
        F.mse_loss(net(x), y).backward()

    eager = training(twin, theirs)
    for _ in range(8):
        x, y = batch()
        gradients(x, y)
        ours.step()
        eager(x, y)
        assert_same([*net.parameters()], [*twin.parameters()])
    assert gradients.statistics().replays == 7


def test_lbfgs_is_refused_with_its_line_and_runs_eagerly() -> None:
    def closing(net: nn.Module, optimizer: Any) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(net(x), y)
                loss.backward()
                return loss

            return optimizer.step(closure).detach()

        return step

    nets = [model(), model()]
    nets[1].load_state_dict(nets[0].state_dict())
    ours, theirs = (closing(net, torch.optim.LBFGS(net.parameters(), max_iter=3)) for net in nets)
    jitted = jit(ours, on_refusal="eager")
    for _ in range(4):
        x, y = batch()
        assert torch.equal(jitted(x, y), theirs(x, y))
    assert jitted.statistics().refusals == 1 and "optimizer.step(closure)" in jitted.explain()


@pytest.mark.parametrize("name", ["sgd nesterov", "adam", "adamw", "rmsprop centered", "adagrad"])
def test_the_learning_rate_is_an_input(name: str) -> None:
    pair = twins(OPTIMIZERS[name])
    for call in range(6):
        for optimizer in (pair.owners[1], pair.eager_owners[1]):
            optimizer.param_groups[0]["lr"] = 0.1 / (call + 1)
        pair.call(*batch())
    assert pair.statistics.recordings == 1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("sgd nesterov", {"momentum": 0.5, "weight_decay": 0.2}),
        ("adam", {"betas": (0.8, 0.99), "eps": 1e-6}),
        ("adamw", {"weight_decay": 0.2, "betas": (0.7, 0.9)}),
        ("rmsprop", {"alpha": 0.5, "eps": 1e-3}),
    ],
)
def test_other_numbers_of_an_optimizer_are_inputs_too(name: str, values: dict[str, Any]) -> None:
    pair = twins(OPTIMIZERS[name])
    pair.calls(3, batch)
    for optimizer in (pair.owners[1], pair.eager_owners[1]):
        optimizer.param_groups[0].update(values)
    pair.calls(3, batch)
    assert pair.statistics.recordings == 1


def test_a_number_that_decides_a_branch_records_anew() -> None:
    pair = twins(OPTIMIZERS["sgd"])
    pair.calls(3, batch)
    for optimizer in (pair.owners[1], pair.eager_owners[1]):
        optimizer.param_groups[0]["weight_decay"] = 0.1
    pair.calls(3, batch)
    assert pair.statistics.recordings == 2
    assert "weight_decay" in pair.statistics.keys[0].rerecorded_because[0]


def test_a_scheduler_stepped_outside_needs_no_new_recording() -> None:
    pair = twins(OPTIMIZERS["sgd momentum"])
    schedulers = [torch.optim.lr_scheduler.OneCycleLR(o[1], 1.0, 10) for o in (pair.owners, pair.eager_owners)]
    for _ in range(6):
        pair.call(*batch())
        for scheduler in schedulers:
            scheduler.step()
    assert pair.statistics.recordings == 1


class OwnSchedule(torch.optim.lr_scheduler.StepLR):
    """What it does beside is not known."""


def test_a_scheduler_of_ones_own_stepped_inside_is_refused_and_steps_once_a_call() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scheduler = OwnSchedule(optimizer, 1, 0.5)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
        scheduler.step()

    jitted = jit(step, on_refusal="eager")
    with pytest.warns(UserWarning, match="change it outside"):
        for _ in range(4):
            jitted(*batch())
    assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (4, 0.5**4)


def test_groups_have_their_own_learning_rates() -> None:
    def make(net: nn.Module) -> torch.optim.Optimizer:
        first, second = net[0].parameters(), net[2].parameters()  # type: ignore[index]
        return torch.optim.AdamW([{"params": first, "lr": 0.1}, {"params": second, "lr": 0.01, "weight_decay": 0.0}])

    net = model()
    pair = Twins(training, net, make(net))
    pair.calls(4, batch)
    for owners in (pair.owners, pair.eager_owners):
        owners[1].param_groups[1]["lr"] = 0.5
    pair.calls(2, batch)
    assert pair.statistics.recordings == 1


def test_a_rate_that_the_program_stores_beside_an_equal_one_is_stored_by_each_replay() -> None:
    def make(net: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        train = training(net, optimizer)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = train(x, y)
            for group in optimizer.param_groups:
                group["last"] = group["lr"]
            return loss

        return step

    net = model()
    pair = Twins(make, net, torch.optim.SGD([{"params": net.parameters(), "last": 0.1}], lr=0.1))
    pair.calls(4, batch)
    for call in range(3):
        for _, optimizer in (pair.owners, pair.eager_owners):
            optimizer.param_groups[0]["lr"] = 0.1 * 0.5**call
        pair.calls(1, batch)
    assert pair.statistics.recordings == 1


def test_a_group_added_between_calls_is_noticed() -> None:
    pair = twins(lambda p: torch.optim.SGD(list(p)[:2], lr=0.1, momentum=0.9))
    pair.calls(3, batch)
    for net, optimizer in (pair.owners, pair.eager_owners):
        optimizer.add_param_group({"params": list(net.parameters())[2:], "lr": 0.5})
    pair.calls(4, batch)
    assert pair.statistics.replays >= 4


def test_frozen_parameters_stay_as_they_are() -> None:
    net = model()
    for param in net[0].parameters():  # type: ignore[index]
        param.requires_grad_(False)
    pair = Twins(training, net, torch.optim.AdamW(net.parameters(), lr=0.1))
    pair.calls(4, batch)


def test_unfreezing_between_calls_is_noticed() -> None:
    net = model()
    net[0].weight.requires_grad_(False)  # type: ignore[index]
    pair = Twins(training, net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    pair.calls(3, batch)
    for owners in (pair.owners, pair.eager_owners):
        owners[0][0].weight.requires_grad_(True)
    pair.calls(4, batch)


def test_freezing_and_unfreezing_in_turns_leaves_no_stale_gradient() -> None:
    net = model()
    pair = Twins(training, net, torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1))
    for call in range(12):
        for owners in (pair.owners, pair.eager_owners):
            owners[0][0].weight.requires_grad_(call % 4 < 2)
        pair.call(*batch())
    assert pair.statistics.replays >= 4


def test_tied_parameters_get_one_update() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.tanh(self.first(x)))[:, :2]

    net = Tied()
    pair = Twins(training, net, torch.optim.Adam(net.parameters(), lr=0.1))
    pair.calls(5, batch)
    assert pair.owners[0].first.weight is pair.owners[0].second.weight


@pytest.mark.parametrize(
    "clip",
    [
        lambda p: nn.utils.clip_grad_norm_(p, 0.1),
        lambda p: nn.utils.clip_grad_norm_(p, 0.1, norm_type=1.0, foreach=True),
        lambda p: nn.utils.clip_grad_norm_(p, 0.1, norm_type=float("inf")),
        lambda p: nn.utils.clip_grad_value_(p, 0.01),
    ],
)
def test_clipped_steps_are_eagers(clip: Callable[..., Any]) -> None:
    def clipped(net: nn.Module, optimizer: Any) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            norm = clip(net.parameters())
            optimizer.step()
            return norm

        return step

    net = model()
    Twins(clipped, net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)).calls(4, batch)


@pytest.mark.parametrize("to_none", [False, True])
@pytest.mark.parametrize("place", ["start", "end", "outside"])
def test_gradients_may_be_zeroed_anywhere(place: str, to_none: bool) -> None:
    def zeroing(net: nn.Module, optimizer: Any) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            if place == "start":
                optimizer.zero_grad(set_to_none=to_none)
            loss = F.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            if place == "end":
                optimizer.zero_grad(set_to_none=to_none)
            return loss.detach()

        return step

    net = model()
    pair = Twins(zeroing, net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    for _ in range(6):
        pair.call(*batch())
        if place == "outside":
            for owners in (pair.owners, pair.eager_owners):
                owners[1].zero_grad(set_to_none=to_none)
    assert pair.statistics.replays >= 4


def test_gradients_accumulate_over_micro_steps() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)

    def accumulating(net: nn.Module, _: Any) -> Callable[..., Any]:
        def micro(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = F.mse_loss(net(x), y) / 3
            loss.backward()
            return loss.detach()

        return micro

    pair = Twins(accumulating, net, optimizer)
    for _ in range(4):
        pair.calls(3, batch)
        for owners in (pair.owners, pair.eager_owners):
            owners[1].step()
            owners[1].zero_grad()
    assert pair.statistics.replays >= 6


def test_a_jitted_optimizer_step_follows_jitted_micro_steps() -> None:
    torch.manual_seed(3)
    net, twin = model(), model()
    twin.load_state_dict(net.state_dict())
    ours, theirs = torch.optim.Adam(net.parameters(), lr=0.1), torch.optim.Adam(twin.parameters(), lr=0.1)
    micro = jit(lambda x, y: F.mse_loss(net(x), y).backward())
    update = jit(ours.step)
    for _ in range(5):
        for _ in range(2):
            x, y = batch()
            micro(x, y)
            F.mse_loss(twin(x), y).backward()
        update()
        theirs.step()
        net.zero_grad(set_to_none=False)
        twin.zero_grad(set_to_none=False)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))
    assert update.statistics().replays >= 3


def test_batch_norm_moves_its_statistics_once_a_call() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    pair = Twins(training, net, torch.optim.SGD(net.parameters(), lr=0.1))
    pair.calls(5, batch)
    assert int(pair.owners[0][1].num_batches_tracked) == 5


def test_dropout_draws_the_numbers_that_eager_draws() -> None:
    net = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.5), nn.Linear(16, 2), nn.Dropout(0.2))
    pair = Twins(training, net, torch.optim.SGD(net.parameters(), lr=0.1))
    pair.calls(5, batch)
    assert pair.statistics.replays == 4


def test_an_optimizer_of_the_users_own_is_followed() -> None:
    class Signed(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for param in group["params"]:
                    average = self.state[param].setdefault("average", torch.zeros_like(param))
                    average.lerp_(param.grad, 0.3)
                    param.sub_(average.sign() * group["lr"])

    net = model()
    pair = Twins(training, net, Signed(net.parameters(), 0.01))
    pair.calls(3, batch)
    for owners in (pair.owners, pair.eager_owners):
        owners[1].param_groups[0]["lr"] = 0.5
    pair.calls(2, batch)
    assert pair.statistics.recordings == 1


def test_an_optimizer_out_of_reach_is_refused() -> None:
    net = model()
    current = contextvars.ContextVar[torch.optim.Optimizer]("optimizer")  # what it holds cannot be surveyed
    current.set(torch.optim.SGD(net.parameters(), lr=0.1))

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        F.mse_loss(net(x), y).backward()
        current.get().step()

    jitted = jit(step, on_refusal="eager")
    for _ in range(3):
        jitted(*batch())
    assert jitted.statistics().refusals == 1
    assert "SGD.step" in jitted.explain()


class Wrapping(torch.optim.Optimizer):
    """As frameworks wrap an optimizer: a subclass that has no state of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    state = property(lambda self: self.optimizer.state)  # type: ignore[assignment]
    param_groups = property(lambda self: self.optimizer.param_groups)  # type: ignore[assignment]

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


class Looking(torch.optim.Optimizer):
    """As Lookahead does it: a subclass with tables of its own, that keeps what it wraps under a private name."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._base_optimizer = optimizer
        self.param_groups, self.defaults, self.state = optimizer.param_groups, optimizer.defaults, {}  # type: ignore[assignment]
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = (
            collections.OrderedDict(),
            collections.OrderedDict(),
        )
        self._slow = [param.detach().clone() for group in self.param_groups for param in group["params"]]
        self._steps = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = self._base_optimizer.step(closure)
        self._steps += 1
        if self._steps % 3 == 0:
            for slow, param in zip(self._slow, self.param_groups[0]["params"], strict=True):
                slow.add_(param - slow, alpha=0.5)
                param.copy_(slow)
        return loss


def test_an_optimizer_under_a_private_name_of_another_is_followed() -> None:
    net = model()
    pair = Twins(training, net, Looking(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)))
    pair.calls(12, batch)
    assert pair.statistics.replays >= 6
    assert [owners[1]._steps for owners in (pair.owners, pair.eager_owners)] == [12, 12]
    assert_same(*(owners[1]._slow for owners in (pair.owners, pair.eager_owners)))


class Forwarding:
    """As others do: an object that looks like the optimizer, attribute by attribute."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()


@pytest.mark.parametrize("wrap", [Wrapping, Forwarding])
def test_a_wrapped_optimizer_is_followed_with_its_schedule(wrap: Any) -> None:
    def make() -> tuple[Any, Any, Any]:
        weight = torch.nn.Parameter(torch.arange(3.0))
        optimizer = torch.optim.Adam([weight], lr=0.1)
        wrapped, schedule = wrap(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def step(x: torch.Tensor) -> torch.Tensor:
            wrapped.zero_grad()
            loss = (weight * x - 1).square().sum()
            loss.backward()
            wrapped.step()
            return loss.detach()

        return step, schedule, weight

    (step, schedule, weight), (eager, same_schedule, same_weight) = make(), make()
    recorded = jit(step)
    for call in range(4):
        x = torch.tensor([1.0, 2.0, -1.0]) * (call + 1)
        assert_same((recorded(x), weight), (eager(x), same_weight))
        schedule.step()
        same_schedule.step()
    assert recorded.statistics().replays == 3


@pytest.mark.parametrize("changed", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "Adamax"])
def test_groups_that_share_their_betas_may_be_given_others(name: str, changed: tuple[int, ...]) -> None:
    def pair() -> tuple[Any, Any]:
        parameters = [nn.Parameter(torch.arange(1.0, 3.0) * sign) for sign in (1, -2)]
        optimizer = getattr(torch.optim, name)([{"params": [one]} for one in parameters], lr=0.1)
        assert optimizer.param_groups[0]["betas"] is optimizer.param_groups[1]["betas"]

        def step(x: torch.Tensor) -> list[torch.Tensor]:
            optimizer.zero_grad()
            ((parameters[0] - 2 * parameters[1]).square() * x).sum().backward()
            optimizer.step()
            return [parameter.detach() for parameter in parameters]

        return step, optimizer

    (eager, theirs), (mine, optimizer) = pair(), pair()
    step = jit(mine)
    for at in range(8):
        if at == 4:
            for group in changed:
                for one in (optimizer, theirs):
                    one.param_groups[group]["betas"] = (0.1 + group / 4, 0.999)
        assert_same(step(torch.tensor(at - 1.5)), eager(torch.tensor(at - 1.5)))
    assert step.statistics().replays >= 6
