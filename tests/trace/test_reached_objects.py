"""Objects in reach that cannot be looked into, or answer questions by raising: a program beside them is recorded."""

from __future__ import annotations

import collections
import enum
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same, jit

CALLS = 4


class Thing:
    pass


class RaisesForAttributes:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class RaisesForItsClass:
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("class")


class RaisesForItsTable:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("table")


class RaisesForWhatItWraps:
    @property
    def __wrapped__(self) -> Any:
        raise RuntimeError("wrapped")


class ListThatRaises(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("iter")

    def __len__(self) -> int:
        raise RuntimeError("len")


class DequeThatRaises(collections.deque[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("iter")


class ModuleWithoutItsConstructor(nn.Module):
    def __init__(self) -> None:
        pass


class OptimizerWithoutItsConstructor(torch.optim.SGD):
    def __init__(self) -> None:
        pass


class TensorThatRaises(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(str(func))


def dead_proxy() -> Any:
    return weakref.proxy(Thing())


def list_within_itself() -> list[Any]:
    circle: list[Any] = [torch.ones(2)]
    circle.append(circle)
    return circle


def view_of_something_written() -> torch.Tensor:
    whole = torch.ones(6, requires_grad=True).clone()
    view, _ = whole.split(3)
    whole.mul_(2)
    return view  # asked for its history it raises


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(2, 2))  # type: ignore[no-any-return]


def traced() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(nn.Linear(2, 2), torch.ones(2))  # type: ignore[no-any-return, no-untyped-call]


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())


MAKERS: list[Callable[[], Any]] = [
    scripted,
    traced,
    dead_proxy,
    lazy,
    nn.UninitializedParameter,
    nested,
    list_within_itself,
    view_of_something_written,
    RaisesForAttributes,
    RaisesForItsClass,
    RaisesForItsTable,
    RaisesForWhatItWraps,
    lambda: ListThatRaises([1]),
    lambda: DequeThatRaises([1]),
    ModuleWithoutItsConstructor,
    OptimizerWithoutItsConstructor,
    lambda: torch.ones(2).as_subclass(TensorThatRaises),
]
IDS = [getattr(make, "__name__", "object") for make in MAKERS]


@pytest.mark.parametrize("make", MAKERS, ids=IDS)
def test_what_a_program_does_not_use_is_left_alone(make: Callable[[], Any]) -> None:
    state = SimpleNamespace(thing=make(), total=torch.zeros(2))

    def add(x: torch.Tensor) -> torch.Tensor:
        state.total.mul_(2).add_(x)
        return state.total - (0 if state.thing is None else 1)

    recorded, total = jit(add), torch.zeros(2)
    for call in range(CALLS):
        x = torch.full((2,), 1.0 + call)
        total = total * 2 + x
        assert_same(recorded(x), total - 1)
    assert recorded.statistics().replays == CALLS - 1


@pytest.mark.parametrize("make", [scripted, traced], ids=["scripted", "traced"])
def test_a_torchscript_module_runs_eagerly_and_once(make: Callable[[], Any]) -> None:
    module, total = make(), torch.zeros(1)

    def run(x: torch.Tensor) -> Any:
        total.add_(1)
        return module(x) * 2

    recorded = treeplay.jit(run, lower="aten")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(CALLS):
            x = torch.full((2,), 1.0 + call)
            assert_same(recorded(x).detach(), (module(x) * 2).detach())
    assert total.item() == CALLS


def test_state_behind_a_weak_proxy_is_found() -> None:
    owner = SimpleNamespace(weight=torch.full((2,), 3.0))

    class Part:
        pass

    owner.part, owner.inner = Part(), nn.Linear(2, 2)
    owner.part.above = weakref.proxy(owner.inner)
    recorded = jit(lambda x: owner.part.above(x) * owner.weight)
    for call in range(CALLS):
        x = torch.full((2,), 1.0 + call)
        with torch.no_grad():
            owner.inner.weight.mul_(2)
            assert_same(recorded(x), owner.inner(x) * owner.weight)
    assert recorded.statistics().replays == CALLS - 1


@pytest.mark.parametrize(
    "make",
    [nested, nn.UninitializedParameter, lambda: torch.eye(2).to_sparse_csr(), dead_proxy, list_within_itself],
    ids=["nested", "uninitialised", "compressed", "dead proxy", "circle"],
)
def test_arguments_that_can_be_no_part_of_a_key_are_refused(make: Callable[[], Any]) -> None:
    recorded, given = treeplay.jit(lambda given, x: x * 2, lower="aten"), make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(CALLS):
            assert_same(recorded(given, torch.tensor([1.0 + call])), torch.tensor([2.0 + 2 * call]))
    assert recorded.statistics().refusals > 0


def test_a_generator_that_is_an_argument_is_taken_from_once() -> None:
    def total(given: Any, x: torch.Tensor) -> torch.Tensor:
        return sum(given, x)  # type: ignore[no-any-return]

    recorded = treeplay.jit(total, lower="aten")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = (value for value in [1, 2, 3])
        assert [recorded(given, torch.ones(1)).item() for _ in range(CALLS)] == [7.0, 1.0, 1.0, 1.0]
        assert [recorded(iter([call]), torch.ones(1)).item() for call in range(CALLS)] == [1.0, 2.0, 3.0, 4.0]


SPECIAL: dict[str, tuple[Callable[[Any, torch.Tensor], Any], Any]] = {
    "__contains__": (lambda owner, x: x * 2 if 3 in owner else x, True),
    "__bool__": (lambda owner, x: x * 2 if owner else x, True),
    "__len__": (lambda owner, x: x * 2 if owner else x, 2),
    "__lt__": (lambda owner, x: x * 2 if owner < 3 else x, True),
    "__floordiv__": (lambda owner, x: x * (owner // 3), 4),
    "__ror__": (lambda owner, x: x * (3 | owner), 4),
    "__float__": (lambda owner, x: x * float(owner), 2.5),
    "__format__": (lambda owner, x: x * len(f"{owner}"), "text"),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_what_a_special_method_changes_is_found(name: str) -> None:
    use, answer = SPECIAL[name]
    counts = {"calls": 0}

    def method(*_: Any) -> Any:
        counts["calls"] += 1
        return answer

    owner = type("Owner", (), {name: method})()
    jitted = jit(lambda x: use(owner, x) * counts["calls"])
    for call in range(1, 6):
        x = torch.full((2,), 0.5 - call)
        found, calls = jitted(x), counts["calls"]
        assert calls == call
        expected = use(owner, x)
        counts["calls"] = calls
        assert_same(found, expected * calls)
    assert jitted.statistics().replays >= 3


def _decorated(go: Any) -> Any:
    class Decorator:
        def __init__(self, function: Any) -> None:
            self.function = function

        def __get__(self, owner: Any, cls: Any) -> Any:
            return partial(self.function, owner)

    owner = type("Owner", (), {"go": Decorator(lambda self, x: go(x))})()
    return lambda x: owner.go(x)


def _metaclass(go: Any) -> Any:
    meta = type("Meta", (type,), {"__call__": lambda cls, x: go(x)})
    made: Any = meta("Made", (), {})
    return lambda x: made(x)


def _enum(go: Any) -> Any:
    class Choice(enum.Enum):
        ONE = 1

        def go(self, x: torch.Tensor) -> Any:
            return go(x)

    return lambda x: Choice.ONE.go(x)


def _made_by_type(go: Any) -> Any:
    class Made:
        def __init__(self, x: Any) -> None:
            self.result = go(x) if x is not None else None

    first = Made(None)
    return lambda x: type(first)(x).result


_kept: list[type] = []


def _derived(go: Any) -> Any:
    class Base:
        pass

    _kept.append(type("Derived", (Base,), {"go": staticmethod(lambda x: go(x))}))
    return lambda x: Base.__subclasses__()[0].go(x)  # type: ignore[attr-defined]


def _held(holder: Any) -> Callable[[Any], Any]:
    def program(go: Any) -> Any:
        held = holder({"go": go})
        return lambda x: held["go"](x)

    return program


def _gotten(go: Any) -> Any:
    find = {"go": go}.get
    return lambda x: find("go")(x)


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "a decorator with __get__": _decorated,
    "a metaclass": _metaclass,
    "an enum": _enum,
    "type(...)": _made_by_type,
    "__subclasses__": _derived,
    "UserDict": _held(collections.UserDict),
    "ChainMap": _held(collections.ChainMap),
    "a view of a dict": _held(MappingProxyType),
    "a method of a dict": _gotten,
}


@pytest.mark.parametrize("what", HOLDERS)
def test_state_behind_a_function_is_found_wherever_that_is_held(what: str) -> None:
    counts = {"calls": 0}

    def go(x: torch.Tensor) -> torch.Tensor:
        counts["calls"] += 1
        return x * 2 - counts["calls"]

    jitted = jit(HOLDERS[what](go))
    for call in range(1, 6):
        assert_same(jitted(torch.ones(2) * call), torch.ones(2) * call)
        assert counts == {"calls": call}
    assert jitted.statistics().replays >= 3


def test_state_behind_a_custom_function_is_found() -> None:
    state = {"gain": torch.ones(2)}

    class Gained(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * state["gain"] - 1

    jitted = jit(lambda x: Gained.apply(x))
    for at in range(4):
        state["gain"] = torch.ones(2) * at
        assert_same(jitted(torch.ones(2)), torch.ones(2) * at - 1)
    assert jitted.statistics().replays == 3


def test_what_hooks_of_parameters_use_and_store_is_found() -> None:
    def world() -> tuple[Any, ...]:
        torch.manual_seed(3)
        weight, state = nn.Parameter(torch.rand(3)), {"gain": torch.rand(3), "norm": None}
        optimizer = torch.optim.Adam([weight], lr=0.1)

        def hook(parameter: torch.Tensor) -> None:  # the optimizer steps in the backward
            state["norm"] = parameter.grad.norm()  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()

        weight.register_hook(lambda grad: grad * state["gain"])
        weight.register_post_accumulate_grad_hook(hook)
        return weight, state, lambda x: (weight * x).exp().sum().backward()

    weight, state, step = world()
    twin, expected, eager = world()
    jitted = jit(step)
    for at in range(5):
        jitted(torch.arange(3.0) + at), eager(torch.arange(3.0) + at)
        assert_same((weight, state), (twin, expected))
        if at == 2:
            state["gain"], expected["gain"] = torch.ones(3), torch.ones(3)
    assert jitted.statistics().replays == 4


def test_a_number_that_a_hook_counts_is_counted() -> None:
    weight, counts = nn.Parameter(torch.ones(3)), {"calls": 0}
    weight.register_hook(lambda grad: counts.update(calls=counts["calls"] + 1))
    jitted = jit(lambda x: (weight * x).sum().backward())
    for call in range(1, 6):
        jitted(torch.ones(3))
        assert counts == {"calls": call}
        assert_same(weight.grad, torch.ones(3) * call)
    assert jitted.statistics().replays >= 3


def test_a_list_that_a_hook_fills_is_refused_and_left_alone() -> None:
    weight, kept = nn.Parameter(torch.ones(3)), []
    weight.register_hook(lambda grad: kept.append(1))
    jitted = jit(lambda x: (weight * x).sum().backward())
    jitted(torch.ones(3))
    with pytest.raises(treeplay.Refusal, match="from 1 items to 2 items"):
        jitted(torch.ones(3))
    assert kept == [1]
