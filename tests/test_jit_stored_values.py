"""Immutable values that a program stores and that hold more than constants: numbers that change, and objects made anew."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import treeplay
from support import jit


class Pair(NamedTuple):
    step: Any
    log: Any


@dataclasses.dataclass(frozen=True)
class Progress:
    step: int
    rate: float


class Keeper:
    def __init__(self) -> None:
        self.n, self.rate, self.kept, self.log = 0, 0.5, None, ["a"]

    def count(self) -> int:
        self.n += 1
        return self.n


STORED: dict[str, Callable[[Keeper], Any]] = {
    "a tuple": lambda it: (it.count(), "n"),
    "a tuple in a tuple": lambda it: (1, (it.count(), 2.5)),
    "a number twice": lambda it: (it.count(), it.n),
    "a named tuple": lambda it: Pair(it.count(), None),
    "a frozen dataclass": lambda it: Progress(it.count(), it.rate * 2),
    "a comparison": lambda it: (it.count() > 3,),
    "a list of state": lambda it: (it.log, it.count()),
    "a dict in a tuple": lambda it: ((), {"n": it.count()}),
    "a list": lambda it: [it.count(), 1.5],
}


def kept_by(program: Callable[[Keeper], Any], wrap: Callable[[Any], Any]) -> tuple[list[Any], Keeper, Any]:
    keeper, found = Keeper(), []

    def step(x: torch.Tensor) -> torch.Tensor:
        keeper.kept = program(keeper)
        return x * 2 - 1

    call = wrap(step)
    for at in range(9):
        keeper.rate = 0.5 + at / 8
        call(torch.arange(3.0))
        found.append(copy.deepcopy(keeper.kept))
    return found, keeper, call


@pytest.mark.parametrize("what", STORED)
def test_numbers_in_what_is_stored_are_those_of_the_call(what: str) -> None:
    found, keeper, call = kept_by(STORED[what], lambda step: jit(step))
    expected, *_ = kept_by(STORED[what], lambda step: step)
    assert found == expected and pickle.loads(pickle.dumps(keeper.kept)) == expected[-1]
    assert repr(found) == repr(expected)  # of the same types
    assert call.statistics().replays >= 4
    if what == "a list of state":
        assert keeper.kept[0] is keeper.log


MADE: dict[str, Callable[[], Any]] = {
    "lists": lambda: ([], {"a": []}),
    "a set": lambda: (set(),),
    "an object": lambda: (Keeper(),),
    "bytes that change": lambda: (bytearray(b"a"),),
    "a slice": lambda: slice(0, [1]),
    "a method of a new object": lambda: Keeper().count,
    "a function of a new list": lambda: [].append,
    "a named tuple": lambda: Pair(1, []),
    "a list": list,
    "a dict": dict,
}


@pytest.mark.parametrize("what", MADE)
def test_what_is_stored_in_a_value_is_made_in_each_call(what: str) -> None:
    keeper, kept = Keeper(), []

    @treeplay.jit(lower="aten")
    def step(x: torch.Tensor) -> torch.Tensor:
        keeper.kept = MADE[what]()
        return x * 2 - 1

    for _ in range(6):
        step(torch.arange(3.0))
        kept.append(keeper.kept)
    held = [getattr(each, "__self__", each) for each in kept]
    parts = [each[-1] if isinstance(each, tuple) else each.stop if isinstance(each, slice) else each for each in held]
    assert len({id(part) for part in parts}) == 6, "a replay stored what an earlier call made"
    if what in ("lists", "a list", "a dict", "a named tuple"):
        assert step.statistics().replays == 5


def test_betas_that_a_step_sets_are_saved_with_the_optimizer() -> None:
    class Trainer:
        def __init__(self) -> None:
            torch.manual_seed(0)
            self.net = torch.nn.Linear(4, 1)
            self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
            self.n = 0

        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.n += 1
            for group in self.optimizer.param_groups:
                group["betas"] = (0.9, 1 - (self.n + 1) ** -0.8)
            self.optimizer.zero_grad()
            loss = self.net(x).square().mean()
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    eager, mine = Trainer(), Trainer()
    step = jit(mine.step)
    for at in range(9):
        x = torch.arange(20.0).reshape(5, 4).sub(at).cos()
        assert torch.equal(step(x), eager.step(x))
        assert mine.optimizer.param_groups[0]["betas"] == eager.optimizer.param_groups[0]["betas"]
    torch.save(mine.optimizer.state_dict(), io.BytesIO())
    assert step.statistics().replays == 8


def test_numbers_may_be_among_the_results() -> None:
    class Counter:
        n = 0

        def step(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
            self.n += 1
            return x - self.n, {"n": self.n, "half": (self.n / 2, "of it")}

    eager, mine = Counter(), Counter()
    step = jit(mine.step)
    for _ in range(8):
        (found, told), (expected, known) = step(torch.ones(2)), eager.step(torch.ones(2))
        assert torch.equal(found, expected) and told == known and type(told["n"]) is int
    assert step.statistics().replays >= 5


def counts_on_a_parameter(weight: Any, x: torch.Tensor) -> torch.Tensor:
    weight.calls = getattr(weight, "calls", 0) + 1
    return x * weight - 1


def puts_a_list_on_a_parameter(weight: Any, x: torch.Tensor) -> torch.Tensor:
    weight.seen = [1]
    return x * weight - 1


def marks_its_result(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y: Any = x * weight - 1
    y.mark = "a"
    return y  # type: ignore[no-any-return]


@pytest.mark.parametrize("program", [counts_on_a_parameter, puts_a_list_on_a_parameter, marks_its_result])
@pytest.mark.parametrize("lower", ["aten", "capture"])
def test_attributes_that_a_program_puts_on_tensors_are_there_after_each_call(
    program: Callable[..., torch.Tensor], lower: str
) -> None:
    mine, theirs = torch.arange(3.0), torch.arange(3.0)
    step = treeplay.jit(lambda x: program(mine, x), lower=lower)
    kept = []
    with pytest.warns(UserWarning, match="mine|attribute `mark`|Python value"):
        for at in range(5):
            found, expected = step(torch.full((3,), at - 1.5)), program(theirs, torch.full((3,), at - 1.5))
            assert torch.equal(found, expected) and vars(found) == vars(expected) and vars(mine) == vars(theirs)
            kept.append(getattr(mine, "seen", at))
    assert len({id(value) for value in kept}) == 5 and step.statistics().replays == 0


def test_attributes_that_a_program_puts_on_what_it_keeps_to_itself_are_no_matter() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y: Any = x * 2 - 1
        y.factor = 3
        return y.sub(1) * y.factor  # type: ignore[no-any-return]

    step = jit(program)
    for at in range(4):
        assert torch.equal(step(torch.full((3,), at - 1.5)), program(torch.full((3,), at - 1.5)))
    assert step.statistics().replays == 3
