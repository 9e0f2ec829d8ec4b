"""A jitted module is the module: same class, same parameters, same state dict, copied and pickled like it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as all_modules

import treeplay
from support import Twins, assert_same, jit


class Net(nn.Module):
    """Two layers and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.register_buffer("offset", torch.ones(2))

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.second(self.first(x).relu()) * scale - self.offset

    def helper(self) -> str:
        return "helped"


def test_it_is_an_instance_of_the_same_class_with_the_same_parts() -> None:
    net = Net()
    jitted = jit(net)
    assert isinstance(jitted, Net) and type(jitted).__name__ == "Net" and jitted.__doc__ == net.__doc__
    assert all(a is b for a, b in zip(jitted.parameters(), net.parameters(), strict=True))
    assert list(jitted.state_dict()) == list(net.state_dict())
    assert jitted.helper() == "helped" and jitted.first is net.first
    assert "first" in repr(jitted)


def test_it_replays_inference() -> None:
    net = Net()
    jitted = jit(net)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(2, 3)
            assert_same(jitted(x, scale=3.0), net(x, scale=3.0))
    assert jitted.statistics().replays == 4 and "Net" in jitted.explain()
    jitted.reset()
    assert jitted.statistics().keys == ()


def test_every_change_is_common_to_both() -> None:
    net = Net()
    jitted = jit(net)
    jitted.eval()
    assert not net.training and not net.first.training
    net.extra = nn.Linear(2, 2)
    assert "extra.weight" in jitted.state_dict()
    jitted.offset = torch.zeros(2)
    assert net.offset.sum() == 0
    jitted.double()
    assert net.first.weight.dtype is torch.float64


def test_a_state_dict_round_trips_through_a_file() -> None:
    source, target = jit(Net()), jit(Net())
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    with torch.no_grad():
        x = torch.randn(2, 3)
        for _ in range(3):
            target(x)
        target.load_state_dict(torch.load(file))
        assert_same(target(x), source.__wrapped__(x))
    assert target.statistics().recordings == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_is_jitted_and_apart(copied: Any) -> None:
    jitted = jit(Net())
    with torch.no_grad():
        for _ in range(3):
            jitted(torch.ones(1, 3))
        twin = copied(jitted)
        assert isinstance(twin, Net) and twin.statistics().calls == 0
        twin.first.weight.fill_(0.5)
        x = torch.randn(2, 3)
        for _ in range(3):
            assert_same(twin(x), twin.__wrapped__(x))
            assert_same(jitted(x), jitted.__wrapped__(x))
        assert not torch.equal(twin(x), jitted(x))


def test_a_jitted_part_of_a_larger_model_trains_with_it() -> None:
    def make(body: nn.Module, head: nn.Module, optimizer: Any) -> Any:
        inner = jit(body, on_refusal="eager")  # called by itself, on the eager side, its result needs gradients

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = head(inner(x)).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    body, head = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=0.1)
    pair = Twins(make, body, head, optimizer)
    pair.calls(5, lambda: (torch.randn(4, 3),))
    assert pair.statistics.replays == 4


def test_a_jitted_module_inside_a_module_is_found_as_a_submodule() -> None:
    model = nn.Sequential(jit(nn.Linear(2, 3)), nn.Tanh())
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    outer = jit(model)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2, 2)
            expected = torch.tanh(nn.functional.linear(x, model[0].weight, model[0].bias))
            assert_same(outer(x), expected)
            model[0].weight.mul_(0.5)
    assert outer.statistics().replays == 3


def test_swapping_the_jitted_inner_module_is_noticed() -> None:
    holder = {"net": jit(nn.Linear(2, 2))}
    jitted = jit(lambda x: holder["net"](x) - 1)
    with torch.no_grad():
        for call in range(6):
            if call == 3:
                holder["net"] = jit(nn.Linear(2, 2))
            x = torch.randn(1, 2)
            assert_same(jitted(x), holder["net"].__wrapped__(x) - 1)


def test_forward_hooks_run_as_in_eager() -> None:
    net = nn.Linear(2, 2)
    net.register_forward_hook(lambda module, args, out: out * 3)
    net.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    jitted = jit(net)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(1, 2)
            assert_same(jitted(x), net(x))


@pytest.mark.parametrize(
    "register", [all_modules.register_module_forward_hook, all_modules.register_module_forward_pre_hook]
)
@pytest.mark.parametrize("has_gradients", [False, True])
def test_what_a_hook_on_all_modules_counts_is_counted(register: Callable[..., Any], has_gradients: bool) -> None:
    counts, net = {"calls": 0}, nn.Linear(2, 2)

    def count(*_: Any) -> None:
        counts["calls"] += 1

    handle = register(count)
    try:
        jitted = jit(lambda x: net(x) - 1, on_refusal="eager")
        with torch.set_grad_enabled(has_gradients):
            for call in range(1, 6):
                jitted(torch.ones(2))
                assert counts["calls"] == call
        assert has_gradients or jitted.statistics().replays
    finally:
        handle.remove()


@pytest.mark.parametrize("has_gradients", [False, True])
def test_a_hook_on_all_modules_is_told_of_the_users_modules_only(has_gradients: bool) -> None:
    told: list[str] = []
    net = nn.Linear(2, 2)
    handle = all_modules.register_module_forward_hook(lambda module, *_: told.append(type(module).__name__))
    try:
        jitted = jit(lambda x: net(x) - 1, on_refusal="eager")
        with torch.set_grad_enabled(has_gradients):
            for _ in range(4):
                jitted(torch.ones(2))
    finally:
        handle.remove()
    assert told == ["Linear"] * 4


def test_what_traces_a_differentiable_program_is_no_module_to_hooks() -> None:
    net = nn.Linear(2, 2)

    def note(module: nn.Module, *_: Any) -> None:
        if type(module) is not nn.Linear:
            raise AssertionError(f"told of {type(module)}")

    handle = all_modules.register_module_forward_hook(note)
    try:
        jitted = jit(lambda x: net(x) - 1)
        for _ in range(4):
            assert_same(jitted(torch.ones(2)), net(torch.ones(2)) - 1)
    finally:
        handle.remove()
    assert jitted.statistics().replays


@pytest.mark.parametrize("when", ["added", "removed", "exchanged"])
def test_a_hook_changed_between_calls_is_noticed(when: str) -> None:
    net = nn.Linear(2, 2)
    handle = None if when == "added" else net.register_forward_hook(lambda module, args, out: out * 3)
    jitted = jit(net)
    with torch.no_grad():
        for call in range(7):
            if call == 3:
                if handle is not None:
                    handle.remove()
                if when != "removed":
                    net.register_forward_hook(lambda module, args, out: out * 5)
            x = torch.randn(1, 2)
            assert_same(jitted(x), net(x))
    assert jitted.statistics().recordings == 2


def test_a_gradient_hook_of_a_parameter_runs_and_is_watched() -> None:
    def make(model: nn.Module, optimizer: Any) -> Any:
        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()

        return step

    model = nn.Linear(2, 2)
    pair = Twins(make, model, torch.optim.SGD(model.parameters(), lr=0.1))
    for call in range(7):
        if call == 3:
            for owners in (pair.owners, pair.eager_owners):
                owners[0].weight.register_hook(lambda grad: grad * 7)
        pair.call(torch.randn(3, 2))


def test_a_hook_of_another_program_costs_no_recording() -> None:
    net, other = nn.Linear(2, 2), nn.Linear(2, 2)
    jitted = jit(net)
    with torch.no_grad():
        for _ in range(5):
            other.register_forward_hook(lambda module, args, out: out)
            jitted(torch.ones(1, 2))
    assert jitted.statistics().recordings == 1 and jitted.statistics().replays == 4


def test_a_module_is_jitted_once() -> None:
    jitted = jit(nn.Linear(2, 2))
    with pytest.raises(treeplay.ArgumentTypeError, match="jitted already"):
        jit(jitted)


def test_private_attributes_of_a_module_are_state() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._mask = torch.ones(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self._mask.mul_(2)
            return x * self._mask

    module = Masked()
    jitted = jit(module)
    for call in range(1, 5):
        assert_same(jitted(torch.ones(3)), torch.full((3,), 2.0**call))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding_mode="circular", padding=1), nn.GroupNorm(2, 4)),
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 2, 2), nn.MaxPool2d(2), nn.Upsample(scale_factor=2)),
        lambda: nn.Sequential(nn.InstanceNorm2d(2, affine=True), nn.PReLU(), nn.Softmax(1)),
    ],
)
def test_convolutional_models_train_as_in_eager(make: Any) -> None:
    def training(model: nn.Module, optimizer: Any) -> Any:
        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    model = make()
    pair = Twins(training, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5))
    pair.calls(4, lambda: (torch.randn(2, 2, 8, 8),))
    assert pair.statistics.replays == 3


def test_a_transformer_layer_trains_as_in_eager() -> None:
    def training(model: nn.Module, table: nn.Module, optimizer: Any) -> Any:
        def step(tokens: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            out = model(table(tokens))
            loss = nn.functional.cross_entropy(out.flatten(0, 1) @ table.weight.t(), tokens.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.detach()

        return step

    model, table = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Embedding(11, 8)
    optimizer = torch.optim.AdamW([*model.parameters(), *table.parameters()], lr=0.01)
    pair = Twins(training, model, table, optimizer)
    pair.calls(4, lambda: (torch.randint(11, (2, 5)),))
    assert pair.statistics.replays == 3


def test_a_module_that_the_program_makes_is_part_of_it() -> None:
    def made(x: torch.Tensor) -> torch.Tensor:
        return nn.Linear(3, 2)(x).detach()

    step = Twins(lambda: made)
    step.calls(4, lambda: (torch.randn(5, 3),))
    assert step.statistics.replays == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2),
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    ],
    ids=["transformer", "attention"],
)
@pytest.mark.parametrize("lower", ["aten", "inductor"])
def test_layers_take_the_large_operator_that_they_take_eagerly(make: Any, lower: Any) -> None:
    model = make().eval()

    def step(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return model(x, x, x)[0] if isinstance(model, nn.MultiheadAttention) else model(x)

    jitted = jit(step, lower=lower)
    for _ in range(4):
        x = torch.randn(4, 7, 8)
        found, expected = jitted(x), step(x)
        assert_same(found, expected)
        assert found.stride() == expected.stride()
    assert jitted.statistics().replays == 3


@pytest.mark.parametrize("differentiated", [False, True])
def test_a_hook_that_the_program_puts_on_for_a_while_is_recorded(differentiated: bool) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)

    def program(x: torch.Tensor) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        handle = model.register_forward_hook(lambda module, given, out: seen.append(out * 2))
        found = model(x) - seen[0] * 3
        handle.remove()
        return found if differentiated else found.detach()

    jitted = jit(program)
    for at in range(5):
        x = torch.ones(1, 2) * at
        assert_same(jitted(x).detach(), model(x).detach() - model(x).detach() * 2 * 3)
        other.register_forward_hook(lambda *_: None)  # torch counts all hooks of the process
    assert jitted.statistics().recordings == 1 and jitted.statistics().replays == 4
