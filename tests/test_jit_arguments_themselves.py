"""A program that is run again, or recorded as it runs, is given the very objects of its call: it can tell them from others.

Each is called with an object that it knows from its state too, and with others like it, beside an eager twin.
"""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import treeplay
from support import assert_same, jit

Pair = namedtuple("Pair", "first second")


@dataclass
class Config:
    step: int = 1


@dataclass
class Batch:
    t: Tensor


KINDS: dict[str, Callable[[], Any]] = {
    "dataclass": Config,
    "list": lambda: [1],
    "dict": lambda: {"a": 1},
    "ordered dict": lambda: OrderedDict(a=1),
    "named tuple": lambda: Pair([1], 2),
    "list of tensors": lambda: [torch.arange(3.0)],
    "batch": lambda: Batch(torch.arange(3.0)),
    "nested": lambda: ({"a": [torch.arange(3.0)]},),
}


class Model(nn.Module):
    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([2.0, -1.0, 0.5]))
        self.own = make()

    def forward(self, x: Tensor, given: Any) -> Tensor:
        return (self.p**3 * x * (2 if given is self.own else 3)).sum() - 1


def stepped(program: Any, model: Model, x: Tensor, given: Any) -> tuple[Tensor, Tensor | None]:
    model.p.grad = None
    result = program(x, given)
    if result.requires_grad:
        result.backward()
    return result.detach(), model.p.grad


def beside_eager(make: Callable[[], Any], lower: str, *, grad: bool = True) -> Any:
    """The statistics of a model that is called with its own object, with others, and with its own again."""
    mine, twin = Model(make), Model(make)
    jitted = jit(mine, lower=lower, on_refusal="eager")
    for call, is_own in enumerate([True] * 4 + [False] * 4 + [True, False] * 3):
        x = torch.arange(3.0) + call
        with torch.set_grad_enabled(grad):
            found = stepped(jitted, mine, x, mine.own if is_own else make())
            assert_same(found, stepped(twin, twin, x, twin.own if is_own else make()), f"call {call}")
    return jitted.statistics()


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_an_object_of_the_state_where_the_caller_differentiates(make: Callable[[], Any]) -> None:
    made = beside_eager(make, "aten")
    assert made.refusals == 0 and made.replays >= 8


@pytest.mark.compile
@pytest.mark.parametrize("name", ["dataclass", "list of tensors"])
def test_an_object_of_the_state_where_inductor_compiles(name: str) -> None:
    made = beside_eager(KINDS[name], "inductor")
    assert made.refusals == 0 and made.replays >= 8


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_an_object_of_the_state_in_a_program_that_is_recorded_as_it_runs(make: Callable[[], Any]) -> None:
    beside_eager(make, "capture", grad=False)


def test_a_list_of_numbers_is_itself_in_a_program_that_is_recorded_as_it_runs() -> None:
    made = beside_eager(KINDS["list"], "capture", grad=False)
    assert made.refusals == 0 and made.replays >= 8


def test_a_list_of_tensors_that_is_also_state_is_refused_where_a_program_is_recorded_as_it_runs() -> None:
    model = Model(KINDS["list of tensors"])
    jitted = treeplay.jit(model, lower="capture", on_refusal="raise")
    x = torch.arange(3.0)
    with torch.no_grad():
        jitted(x, model.own)
        with pytest.raises(treeplay.Refusal, match="also in the program's state"):
            jitted(x, model.own)


def test_two_arguments_that_become_one_in_a_program_that_is_recorded_as_it_runs() -> None:
    def program(x: Tensor, a: list[int], b: list[int]) -> Tensor:
        return x * (2 if a is b else 3) - len(a)

    jitted, one = jit(program, lower="capture"), [1]
    for b in ([1], [1], [1], one, one, one, [1]):
        assert_same(jitted(torch.arange(3.0), one, b), program(torch.arange(3.0), one, b))
    assert jitted.statistics().replays >= 4


def test_state_that_is_gone_is_no_argument_in_a_program_that_is_recorded_as_it_runs() -> None:
    class Holder:
        own: Any = None

    def program(x: Tensor, given: list[int]) -> Tensor:
        return x * (2 if given is getattr(holder, "own", None) else 3) - len(given)

    holder = Holder()
    holder.own = [1]
    jitted = jit(program, lower="capture", on_refusal="eager")
    for call in range(8):
        if call == 4:
            del holder.own
        assert_same(jitted(torch.arange(3.0), [1]), program(torch.arange(3.0), [1]))


def test_an_argument_is_told_from_what_took_the_place_of_its_like() -> None:
    """In a program that is recorded as it runs, where no guard is about the object in the state."""
    mine, twin = Model(lambda: [1]), Model(lambda: [1])
    jitted = jit(mine, lower="capture", on_refusal="eager")
    with torch.no_grad():
        for call in range(8):
            if call == 4:
                mine.own, twin.own = [1], [1]
            x = torch.arange(3.0) + call
            own = call >= 4
            assert_same(jitted(x, mine.own if own else [1]), twin(x, twin.own if own else [1]))


def test_what_a_container_and_an_argument_hold_is_one_tensor() -> None:
    p = torch.tensor([2.0, -1.0, 0.5], requires_grad=True)

    def program(x: Tensor, given: list[Tensor]) -> Tensor:
        return (p * x * (2 if given[0] is x else 3) - given[0]).sum()

    jitted = jit(program, lower="aten")
    for call in range(6):
        x = torch.arange(3.0) + call
        given = [x if call < 4 else x.clone()]
        assert_same(jitted(x, given), program(x, given))


def test_a_tensor_in_a_container_is_asked_what_it_is() -> None:
    p = torch.tensor([2.0, -1.0], requires_grad=True)

    def program(given: list[Tensor]) -> Tensor:
        return (p * given[0] * (2 if given[0]._is_view() else 3) - given[0].storage_offset()).sum()

    jitted = jit(program, lower="aten", on_refusal="eager")
    for call in range(8):
        given = [torch.arange(4.0)[2:] if call % 4 < 2 else torch.arange(2.0)]
        assert_same(jitted(given), program(given))


class Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([2.0, -1.0, 0.5]))
        self.own: dict[str, Any] = {}

    def forward(self, x: Tensor, given: dict[str, Any]) -> Tensor:
        given["k"] = x * 2
        return (self.p * x * (2 if "k" in self.own else 3)).sum() - 1


def test_what_is_written_through_an_argument_is_read_in_the_state() -> None:
    mine, twin = Writing(), Writing()
    jitted = jit(mine, lower="aten")
    for call in range(6):
        mine.own.clear(), twin.own.clear()
        x = torch.arange(3.0) + call
        assert_same(jitted(x, mine.own), twin(x, twin.own))
        assert_same(mine.own, twin.own)
    assert jitted.statistics().replays >= 4


def test_what_is_written_to_the_containers_of_a_call_is_put_back() -> None:
    p = torch.tensor([2.0, -1.0, 0.5], requires_grad=True)

    def program(x: Tensor, given: dict[str, Any]) -> Tensor:
        given["count"] += 1
        given["rows"].append(given["count"])
        given["t"].mul_(2)
        return (p * x * given["count"]).sum() - len(given["rows"])

    jitted = jit(program, lower="aten", on_refusal="eager")
    for call in range(6):
        mine, twin = ({"count": 0, "rows": [3], "t": torch.arange(3.0) + call} for _ in range(2))
        x = torch.arange(3.0) + call
        assert_same(jitted(x, mine), program(x, twin))
        assert_same(mine, twin)


def test_what_is_written_before_a_run_raises_is_put_back() -> None:
    p = torch.tensor([2.0, -1.0, 0.5], requires_grad=True)
    runs = []

    def program(x: Tensor, given: dict[str, Any], fails: list[bool]) -> Tensor:
        given["k"] = x * 2
        if fails[0]:
            raise ValueError(len(runs))
        return (p * x).sum() - 1

    jitted = jit(program, lower="aten", on_refusal="eager")
    for call in range(6):
        mine, twin, x = {"a": 1}, {"a": 1}, torch.arange(3.0) + call
        if call >= 4:
            with pytest.raises(ValueError, match="0"):
                program(x, twin, [True])
            with pytest.raises(ValueError, match="0"):
                jitted(x, mine, [True])
        else:
            assert_same(jitted(x, mine, [False]), program(x, twin, [False]))
        assert_same(mine, twin)


@pytest.mark.parametrize("name", ["dataclass", "list", "list of tensors", "batch"])
def test_an_object_of_the_state_where_a_gradient_is_differentiated(name: str) -> None:
    mine, twin = Model(KINDS[name]), Model(KINDS[name])
    jitted = jit(mine, lower="aten")
    for call in range(6):
        x = torch.arange(3.0) + call
        assert_same(twice(jitted, mine, x), twice(twin, twin, x))
    assert jitted.statistics().replays >= 4


def twice(program: Any, model: Model, x: Tensor) -> tuple[Tensor, ...]:
    result = program(x, model.own)
    (slope,) = torch.autograd.grad(result, model.p, create_graph=True)
    (curve,) = torch.autograd.grad(slope.sum(), model.p)
    return result.detach(), slope.detach(), curve


def test_an_object_that_is_gone_when_a_gradient_is_differentiated_is_never_another() -> None:
    """Its place in the state has another by then; eager's graph is that of the call."""
    model = Model(Config)
    jitted = jit(model, lower="aten")
    for _ in range(3):
        result = jitted(torch.arange(3.0), model.own)
    model.own = Config()
    (slope,) = torch.autograd.grad(result, model.p, create_graph=True)
    with pytest.raises(treeplay.TreeplayError, match="would not do the same again"):
        torch.autograd.grad(slope.sum(), model.p)
