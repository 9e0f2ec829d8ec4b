"""Programs that ask a number that varies for its class: what stands for it in a trace is of another one."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import jit


class State:
    def __init__(self, value: Any) -> None:
        self.value = value


def by_isinstance(it: State) -> Any:
    return it.value + 1 if isinstance(it.value, int) and not isinstance(it.value, bool) else 0


def by_several(it: State) -> Any:
    return it.value * 2 if isinstance(it.value, (str, float)) else 0


def by_match(it: State) -> Any:
    match it.value:
        case bool():
            return 7
        case int():
            return it.value + 1
    return 0


def by_an_abstract_class(it: State) -> Any:
    return it.value + 1 if isinstance(it.value, numbers.Integral) else 0


def by_its_class(it: State) -> Any:
    return it.value + 1 if it.value.__class__ is int else 0


def of_a_computed_number(it: State) -> Any:
    return it.value + 1 if isinstance(it.value / 2, float) and isinstance(it.value > 1, bool) else 0


def by_type(it: State) -> Any:
    return it.value + 1 if type(it.value) is int else 0


def by_types(it: State) -> Any:
    return it.value + 1 if [*map(type, [it.value])] == [int] else 0


RECORDED: dict[Callable[[State], Any], Any] = {
    by_isinstance: 3,
    by_several: 0.75,
    by_match: 3,
    by_an_abstract_class: 3,
    by_its_class: 3,
    of_a_computed_number: 3,
}


@pytest.mark.parametrize("step", [*RECORDED, by_type, by_types])
def test_a_number_of_the_state_has_its_own_class(step: Callable[[State], Any]) -> None:
    value = RECORDED.get(step, 3)
    mine, theirs = State(value), State(value)

    def run(it: State, x: torch.Tensor) -> torch.Tensor:
        it.value = step(it)
        return x * 2 - 1

    call = jit(lambda x: run(mine, x), on_refusal="eager")
    for _ in range(6):
        assert torch.equal(call(torch.arange(3.0)), run(theirs, torch.arange(3.0)))
        assert mine.value == theirs.value and type(mine.value) is type(theirs.value)
    assert (call.statistics().replays > 3) is (step in RECORDED)


def test_a_number_among_the_arguments_has_its_own_class() -> None:
    def scaled(x: torch.Tensor, n: Any) -> torch.Tensor:
        return x * n - 1 if isinstance(n, int) else x

    def typed(x: torch.Tensor, n: Any) -> torch.Tensor:
        return x * n - 1 if type(n) is int else x

    for program in (scaled, typed):
        call = jit(program, on_refusal="eager")
        for n in range(2, 11):
            assert torch.equal(call(torch.ones(2), n), torch.ones(2) * n - 1)
        assert (call.statistics().replays > 3) is (program is scaled)


def test_a_program_that_was_text_may_ask_for_the_type_of_a_number() -> None:
    """As with `python -c`, where code is of no file."""
    scope: dict[str, Any] = {"large": torch.tensor(3.0), "small": torch.tensor(0.03)}
    exec("def program(x, n):\n    return x * (large if type(n) is float else small) - n", scope)
    call = jit(scope["program"], on_refusal="eager")
    for n in (0.5, 0.6, 0.7, 0.8, 0.9):
        assert torch.equal(call(torch.ones(2), n), torch.ones(2) * 3.0 - n)


def test_a_rate_has_its_own_class() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)

    def program(x: torch.Tensor) -> torch.Tensor:
        rate = optimizer.param_groups[0]["lr"]
        return x * rate - 1 if isinstance(rate, float) else x

    call = jit(program)
    for at in range(5):
        optimizer.param_groups[0]["lr"] = 1.0 + at
        assert torch.equal(call(torch.ones(2)), torch.ones(2) * at)
    assert call.statistics().replays == 4


def test_of_its_own_object_a_program_may_ask_the_type() -> None:
    class Counter:
        n = 0

        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.n += 1
            return x * self.n - len(type(self).__name__)

    mine, theirs = Counter(), Counter()
    call = jit(mine.step)
    for _ in range(6):
        assert torch.equal(call(torch.ones(2)), theirs.step(torch.ones(2)))
    assert call.statistics().replays > 3
