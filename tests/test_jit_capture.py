"""`lower="capture"`: programs recorded as they are give what eager gives, bit for bit, and are refused like others."""

from __future__ import annotations

import ctypes
import decimal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import Twins, assert_same, training

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)

library = torch.library.Library("treeplay_test_capture", "DEF")
library.define("soften(Tensor x, float by) -> Tensor")
library.impl("soften", lambda x, by: x.tanh() * by - x, "CPU")  # no rule for running without data
soften: Any = torch.ops.treeplay_test_capture.soften

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adagrad fused": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
}


def capture(program: Any, **options: Any) -> Any:
    return treeplay.jit(program, **{"lower": "capture", "on_refusal": "raise", **options})


def twins(make: Any, *owners: Any, **options: Any) -> Twins:
    return Twins(make, *owners, lower="capture", **options)


def model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 2))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3), torch.randn(4, 2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_step_leaves_what_eager_leaves(name: str) -> None:
    net = model()
    pair = twins(training, net, OPTIMIZERS[name](net.parameters()))
    pair.calls(6, batch)
    assert pair.statistics.replays == 5 and pair.statistics.keys[0].recordings[0].lowering == "capture"


def test_an_operator_without_a_rule_for_running_without_data_is_recorded() -> None:
    def make(net: nn.Module) -> Any:
        return lambda x: soften(net(x), 0.5) * 2 - x[:, :2]

    with torch.no_grad():
        pair = twins(make, model())
        pair.calls(5, lambda: (torch.randn(4, 3),))
    assert pair.statistics.replays == 4


def test_a_host_read_is_refused_with_its_line_and_runs_eagerly() -> None:
    def use(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item() - 1

    jitted = capture(use)
    jitted(torch.ones(2))
    with pytest.raises(treeplay.Refusal, match="item") as caught:
        jitted(torch.ones(2))
    assert caught.value.where is not None and "x.sum().item()" in caught.value.where.source
    pair = twins(lambda: use, on_refusal="eager")
    pair.calls(4, lambda: (torch.randn(3),))
    assert pair.statistics.refusals == 1


def test_a_python_counter_is_refused_and_not_moved_by_the_attempt() -> None:
    class Counting:
        def __init__(self) -> None:
            self.count = 0

        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    counting = Counting()
    jitted = capture(counting.step)
    jitted(torch.ones(2))
    with pytest.raises(treeplay.Refusal, match="changes a Python value"):
        jitted(torch.ones(2))
    assert counting.count == 1


def test_reassigned_state_is_read_where_it_is_now() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))
            self.register_buffer("offset", torch.randn(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight - self.offset

    net = Shifted()
    jitted = capture(lambda x: net(x))
    with torch.no_grad():
        for call in range(10):
            if call == 3:
                net.weight.data = torch.randn(3)
            if call == 5:
                net.weight = nn.Parameter(torch.randn(3))
            if call == 7:
                net.offset = torch.randn(3)
            x = torch.randn(2, 3)
            assert_same(jitted(x), net(x))


def test_containers_of_state_may_be_replaced() -> None:
    """The next recording looked for their tensors in those that were there before: an error of treeplay's."""
    state = SimpleNamespace(pair=(torch.ones(2), torch.ones(2)), items=[torch.ones(2)], table={"a": torch.ones(2)})

    def program(x: torch.Tensor) -> torch.Tensor:
        return state.pair[0] - state.pair[1] * x + state.items[0] / 3 - state.table["a"] * 5

    jitted = capture(program)
    changes = {
        4: lambda: setattr(state, "pair", (torch.full((2,), 7.0), state.pair[1])),
        6: lambda: setattr(state, "items", [torch.full((2,), 8.0)]),
        8: lambda: setattr(state, "table", {"a": torch.full((2,), 9.0)}),
    }
    for call in range(10):
        changes.get(call, lambda: None)()
        x = torch.full((2,), float(call))
        assert_same(jitted(x), program(x))
    assert jitted.statistics().not_replayed == {"observed": 1}


@pytest.mark.parametrize("make", [tuple, list, lambda parts: {"h": parts}])
def test_state_that_is_stored_in_a_new_container_is_refused_with_the_cure(make: Any) -> None:
    """Each call found it elsewhere, which was an error of treeplay's."""
    state = SimpleNamespace(hidden=make([torch.zeros(2), torch.ones(2)]))

    def program(x: torch.Tensor) -> torch.Tensor:
        h, c = state.hidden["h"] if isinstance(state.hidden, dict) else state.hidden
        state.hidden = make([h + x, c * 0.5 - x])
        return h - c

    jitted = capture(program)
    jitted(torch.ones(2))
    with pytest.raises(treeplay.Refusal, match=r"hidden: is stored anew in each call, with `state\.hidden") as refused:
        jitted(torch.ones(2))
    assert "an attribute of its own" in refused.value.advice


def test_flags_and_numbers_are_watched() -> None:
    net = model()
    jitted, scale = capture(lambda x: net(x) * box["by"]), {"by": 2.0}
    box = scale
    with torch.no_grad():
        for call in range(8):
            net.train(call < 3)
            box["by"] = 2.0 if call < 6 else 3.0
            x, state = torch.randn(4, 3), torch.get_rng_state()
            buffers = {name: value.clone() for name, value in net.state_dict().items()}
            expected = net(x) * box["by"]
            net.load_state_dict(buffers)
            torch.set_rng_state(state)
            assert_same(jitted(x), expected)


def test_results_and_gradients_that_are_kept_stay_what_they_were() -> None:
    net = model()
    jitted, kept = capture(training(net, torch.optim.SGD(net.parameters(), lr=0.1))), []
    for _ in range(6):
        found = [jitted(*batch()), *(param.grad for param in net.parameters())]
        kept.append((found, [tensor.clone() for tensor in found]))
    assert all(torch.equal(a, b) for found, copies in kept for a, b in zip(found, copies, strict=True))


def test_arguments_that_share_memory_with_each_other_or_with_state() -> None:
    state = torch.randn(6)

    def use(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(0.5).add_(state[1:5].clone())
        return b * 2 - a

    jitted = capture(use)
    room, twin_room = torch.randn(12), None
    for call in range(8):
        shift = call % 3
        pairs = [
            (room[shift : shift + 4], room[shift + 2 : shift + 6]),
            (state[:4], room[:4]),
            (torch.ones(4), room[4:8]),
        ]
        mine = pairs[call % 3]
        before, twin_room = state.clone(), room.clone()
        expected = use(*mine)
        after = state.clone(), room.clone()
        state.copy_(before)
        room.copy_(twin_room)
        if call % 3 == 2:
            mine = (torch.ones(4), mine[1])
        assert_same(jitted(*mine), expected)
        assert_same((state, room), after)


def test_a_gradient_scaler_with_an_optimizer_that_takes_the_scale() -> None:
    def make(net: nn.Module, optimizer: Any, scale: Any) -> Any:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.mse_loss(net(x), y)
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()
            return loss.detach()

        return step

    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    scale = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    pair = twins(make, net, torch.optim.AdamW(net.parameters(), lr=0.01, fused=True), scale)
    pair.eager_owners[1]._step_supports_amp_scaling = True  # a copied optimizer forgets it
    for call in range(10):
        x, y = batch()
        if call in (4, 7):
            x[0, 0] = torch.inf
        pair.call(x, y)
    assert pair.statistics.replays == 9


@pytest.mark.parametrize("mode", ["autocast", "no_grad", "inference"])
def test_modes_around_the_call_are_the_calls(mode: str) -> None:
    net = nn.Linear(3, 2)
    jitted = capture(lambda x: net(x).detach())
    contexts = {
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
    }
    for _ in range(5):
        x = torch.randn(4, 3)
        with contexts[mode]():
            found, expected = jitted(x), net(x).detach()
        assert_same(found, expected)
        assert found.is_inference() == expected.is_inference()
        assert_same(jitted(x), net(x).detach())


def test_a_program_that_raises_raises_its_own_error_and_goes_on() -> None:
    net, fails = nn.Linear(3, 2), [False]

    def use(x: torch.Tensor) -> torch.Tensor:
        if fails[0]:
            raise ValueError("of the program")
        return net(x).detach()

    jitted = capture(use)
    for call in range(6):
        fails[0] = call in (1, 3)
        x = torch.randn(2, 3)
        if fails[0]:
            with pytest.raises((ValueError, treeplay.Refusal)):
                jitted(x)
        else:
            try:
                assert_same(jitted(x), use(x))
            except treeplay.Refusal:
                break


def test_the_call_and_its_tensors_are_not_kept() -> None:
    import gc
    import weakref

    jitted = capture(lambda x: x * 2 - 1)
    for _ in range(3):
        x = torch.randn(5)
        jitted(x)
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_run_that_differs_from_the_rehearsal_has_its_effects_once(device: str) -> None:
    """What counts up lies in C, where no snapshot finds it: each run of the program returns another number of results."""
    runs, total, slots = decimal.Context(prec=1), torch.ones(3, device=device), {"last": None}
    twin = torch.ones(3, device=device)

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        runs.prec += 1
        total.mul_(3).add_(x)
        slots["last"] = total - x
        return [total - x] * (1 + runs.prec % 2)

    jitted = capture(program, on_refusal="eager")
    with pytest.warns(UserWarning, match="does not do the same on each run"):
        for call in range(5):
            x = torch.full((3,), float(call), device=device)
            found = jitted(x)
            twin.mul_(3).add_(x)
            assert_same(total, twin)
            assert_same([found[0], slots["last"]], [twin - x, twin - x])
    statistics = jitted.statistics()
    assert statistics.replays == 0 and statistics.eager_calls == 5 and statistics.refusals == 1


def _attributes() -> tuple[Callable[[int, Any], None], Callable[[int], Any]]:
    holders = [SimpleNamespace(out=None), SimpleNamespace(out=None)]
    return (lambda at, value: setattr(holders[at], "out", value)), lambda at: holders[at].out


def _entries() -> tuple[Callable[[int, Any], None], Callable[[int], Any]]:
    holders: list[dict[str, Any]] = [{"out": None}, {"out": None}]
    return (lambda at, value: holders[at].__setitem__("out", value)), lambda at: holders[at]["out"]


def _items() -> tuple[Callable[[int, Any], None], Callable[[int], Any]]:
    holders: list[list[Any]] = [[None], [None]]
    return (lambda at, value: holders[at].__setitem__(0, value)), lambda at: holders[at][0]


def _cells() -> tuple[Callable[[int, Any], None], Callable[[int], Any]]:
    first = second = None

    def store(at: int, value: Any) -> None:
        nonlocal first, second
        first, second = (value, second) if at == 0 else (first, value)

    return store, lambda at: (first, second)[at]


@pytest.mark.parametrize("make", [_attributes, _entries, _items, _cells])
def test_runs_that_store_under_one_name_in_two_objects_are_told_apart(make: Any) -> None:
    runs, (store, read) = decimal.Context(prec=1), make()

    def program(x: torch.Tensor) -> None:
        runs.prec += 1
        store(runs.prec % 2, x * 3 - 1)

    jitted = capture(program, on_refusal="eager")
    with pytest.warns(UserWarning, match="does not do the same on each run"):
        for call in range(4):
            x = torch.full((2,), float(call))
            jitted(x)
            assert_same(read(runs.prec % 2), x * 3 - 1)
    assert jitted.statistics().replays == 0


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("kind", [KeyError, SystemExit])
def test_an_exception_of_the_programs_own_is_raised_after_what_came_before_it(
    kind: type[BaseException], at: int, device: str
) -> None:
    broken, total, twin = ctypes.c_bool(False), torch.ones(3, device=device), torch.ones(3, device=device)

    def program(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.mul_(3).add_(x)
        if broken.value:
            raise kind("mine")
        return total - x

    jitted = capture(program, on_refusal="eager")
    for call in range(4):
        x = torch.full((3,), float(call), device=device)
        broken.value = call == at
        if call == at and not _is_replayed(jitted):
            with pytest.raises(kind, match="mine"):
                program(x, twin)
            with pytest.raises(kind, match="mine"):
                jitted(x, total)
        else:
            broken.value = False
            assert_same(jitted(x, total), program(x, twin))
        assert_same(total, twin)


@pytest.mark.parametrize("kind", [KeyError, SystemExit])
def test_a_program_that_ends_while_it_is_recorded_again_has_its_effects(kind: type[BaseException]) -> None:
    broken, total, twin = ctypes.c_bool(False), torch.ones(3), torch.ones(3)

    def program(total: torch.Tensor) -> Any:
        def step(x: torch.Tensor) -> torch.Tensor:
            total.mul_(3).add_(x)
            if broken.value:
                raise kind("mine")
            return total - x

        return step

    jitted, eager = capture(program(total), on_refusal="eager"), program(twin)
    for call in range(6):
        x, broken.value = torch.full((3,), float(call)), call == 4
        if broken.value:
            total.data = total.clone()  # elsewhere than the recording reads it
            with pytest.raises(kind, match="mine"):
                eager(x)
            with pytest.raises(kind, match="mine"):
                jitted(x)
        else:
            assert_same(jitted(x), eager(x))
        assert_same(total, twin)
    assert jitted.statistics().replays


def _is_replayed(jitted: Any) -> bool:
    """Whether the next call runs none of the program's Python."""
    stages = [recording.launch.stage for key in jitted.statistics().keys for recording in key.recordings]
    return stages == ["recorded"]
