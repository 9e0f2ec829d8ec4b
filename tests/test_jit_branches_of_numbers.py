"""Programs in which a number that varies decides which plain numbers operators are given: a recording for each way that Python
goes, however the first call went."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from support import assert_same, jit


class Solver:
    """State that a program steps."""

    def __init__(self) -> None:
        self.x, self.n, self.is_late, self.mode = torch.ones(3), 0, False, "a"


Program = Callable[[Any, Tensor], Tensor]


def beside_eager(program: Program, state: Any, *, calls: int, on_refusal: str = "raise") -> Any:
    """What jit tells of calls beside an eager twin: results and state are the same."""
    twin = copy.deepcopy(state)
    step = jit(lambda x: program(state, x), on_refusal=on_refusal)
    for call in range(calls):
        x = torch.arange(3.0) + call
        assert_same(step(x), program(twin, x))
        assert_same(vars(state), vars(twin))
    return step.statistics()


def each_call(s: Any, x: Tensor) -> Tensor:
    h = 0.5 if s.n % 2 == 0 else 1.0
    s.x = s.x + h * torch.sin(s.x - x)
    s.n += 1
    return s.x - 1


def every_fourth_call(s: Any, x: Tensor) -> Tensor:
    s.n += 1
    return x * (3 if s.n % 4 == 0 else 2) - s.n


def of_three(s: Any, x: Tensor) -> Tensor:
    s.n += 1
    rest = s.n % 3
    return x * (2 if rest == 0 else 3 if rest == 1 else 5) - 1


@pytest.mark.parametrize(("program", "branches"), [(each_call, 2), (every_fourth_call, 2), (of_three, 3)])
def test_each_branch_is_recorded_once(program: Program, branches: int) -> None:
    found = beside_eager(program, Solver(), calls=24)
    assert found.recordings == branches and found.replays >= 24 - branches - 1


def a_flag_by_turns(s: Any, x: Tensor) -> Tensor:
    s.n += 1
    s.is_late = not s.is_late
    return x * (2 if s.is_late else -3) - 1


def a_flag_of_four(s: Any, x: Tensor) -> Tensor:
    s.n += 1
    if s.n % 4 == 0:
        s.is_late = not s.is_late
    return x * (2 if s.is_late else 3) - s.n


def a_name_of_four(s: Any, x: Tensor) -> Tensor:
    s.n += 1
    if s.n % 4 == 0:
        s.mode = "b" if s.mode == "a" else "a"
    return x * (2 if s.mode == "a" else -1) - s.n


@pytest.mark.parametrize("make", [Solver, lambda: types.SimpleNamespace(**vars(Solver()))], ids=["object", "namespace"])
@pytest.mark.parametrize("program", [a_flag_by_turns, a_flag_of_four, a_name_of_four])
def test_what_the_program_flips_is_recorded_each_way(program: Program, make: Callable[[], Any]) -> None:
    found = beside_eager(program, make(), calls=40)
    assert found.refusals == 0 and found.replays >= 32


def test_a_branch_on_an_argument_is_recorded_each_way() -> None:
    def program(x: Tensor, n: int) -> Tensor:
        return x * (0.5 if n % 2 == 0 else 2.0) - n

    step = jit(program)
    for n in range(12):
        assert_same(step(torch.arange(3.0), n), program(torch.arange(3.0), n))
    assert step.statistics().recordings == 2 and step.statistics().replays == 9


def test_a_number_that_no_branch_explains_is_refused_at_its_line(tmp_path: Path) -> None:
    path, s = tmp_path / "log", Solver()
    path.touch()

    def program(x: Tensor) -> Tensor:
        s.n += 1
        return x * path.stat().st_size - s.n  # this line

    step = jit(program, on_refusal="eager")
    with pytest.warns(UserWarning, match=r"mul.*is given the number 2 .* and 3 [^\n]*\n.*\n.*# this line"):
        for call in range(6):
            path.write_text("x" * (call + 1))
            assert_same(step(torch.arange(3.0)), torch.arange(3.0) * (call + 1) - (call + 1))


ASKED: dict[str, Callable[[int], Any]] = {
    "is true": lambda n: (n % 2 == 0) is True,
    "is not false": lambda n: (n > 4) is not False,
    "another one": lambda n: (n > 0) is (n > -1),
    "an index": lambda n: ("early", "late")[n > 4],
    "repeated": lambda n: "a" * (n > 3),
    "its attributes": lambda n: hasattr(n > 4, "real"),
    "a copy": lambda n: copy.copy(n > 4) is (n > 4),
    "bits": lambda n: (n > 3) & True,
    "its class": lambda n: (n > 3).__class__.__name__,
    "a copy of the number": lambda n: copy.copy(n) is n and copy.deepcopy([n])[0] == n,
    "one of torch's symbols": lambda n: isinstance(n, torch.SymInt),
    "a dictionary of its own": lambda n: hasattr(n, "__dict__"),
}


@pytest.mark.parametrize("what", ASKED)
def test_the_outcome_of_a_comparison_is_that_of_eager(what: str) -> None:
    def program(s: Any, x: Tensor) -> Tensor:
        s.n += 1
        s.mode = ASKED[what](s.n)
        return x * s.n - 1

    found = beside_eager(program, Solver(), calls=10, on_refusal="eager")
    assert found.recordings <= 2


def in_training(x: Tensor, on: Any) -> Tensor:
    return torch.nn.functional.dropout(x, 1.0, training=on)


def with_gradients(x: Tensor, on: Any) -> Tensor:
    with torch.set_grad_enabled(on):
        return x * (3 if torch.is_grad_enabled() else 2)


def in_fewer_bits(x: Tensor, on: Any) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
        return (x[None] @ x[:, None]).float() / 7


def test_an_integer_beside_a_float_is_compared_as_python_does_it() -> None:
    def program(s: Any, x: Tensor) -> Tensor:
        s.n += 1
        return x * 3 - (1 if s.n > 2.0**53 else 2)

    state = Solver()
    state.n = 2**53 - 4
    beside_eager(program, state, calls=8)


@pytest.mark.parametrize("use", [in_training, with_gradients, in_fewer_bits])
def test_torch_takes_the_outcome_of_a_comparison(use: Callable[[Tensor, Any], Tensor]) -> None:
    def program(s: Any, x: Tensor) -> Tensor:
        s.n += 1
        return use(x, s.n > 5) - s.n

    found = beside_eager(program, Solver(), calls=12)
    assert found.recordings == 2 and found.replays >= 9


def test_numpys_outcome_of_a_comparison_is_numpys() -> None:
    def program(s: Any, x: Tensor) -> Tensor:
        s.n += 1
        s.mode = ((numpy.int64(3) < s.n) is True, type(numpy.int64(3) < s.n).__name__)
        return x * s.n - 1

    beside_eager(program, Solver(), calls=8, on_refusal="eager")
