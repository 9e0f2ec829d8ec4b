"""What a program computes of numbers that vary: as Python and NumPy compute it, of their classes, in a replay too."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Exponential, Normal, Uniform, kl_divergence

import treeplay
from support import assert_same, jit


class Counts:
    """Numbers that a program counts, and what it made of them."""

    def __init__(self) -> None:
        self.n, self.a, self.made = 0, 1.3, None
        self.hits: Any = 0


Compute = Callable[[int, float], Any]
COMPARISONS: dict[str, Compute] = {
    "sum": lambda n, a: sum([n > 2, n > 4]),
    "of two": lambda n, a: (n > 2) + (n > 4),
    "scaled": lambda n, a: 3 * (n > 4) - 1,
    "beside an integer": lambda n, a: n * (n > 4) - n,
    "beside a float": lambda n, a: a - (n > 4),
    "as it is": lambda n, a: n > 4,
}
ROUNDED: dict[str, Compute] = {
    "tens": lambda n, a: round(n * 7, -1),
    "a whole number": lambda n, a: round(n, 2) - round(n),
    "digits": lambda n, a: round(a * 1.37, 2),
    "to a whole number": lambda n, a: round(a * 1.37),
    "a float to tens": lambda n, a: round(a * 13.7, -1),
}
NUMPYS: dict[str, Compute] = {
    "integer behind": lambda n, a: n + numpy.int64(2),
    "integer before": lambda n, a: numpy.int64(2) - n,
    "float behind": lambda n, a: n - numpy.float64(2),
    "float before": lambda n, a: numpy.float64(2) - a,
    "integer beside a float": lambda n, a: a - numpy.int64(3),
    "quotient of integers": lambda n, a: n / numpy.int64(7),
    "what is made of one": lambda n, a: (n + numpy.int64(2)) * 0.5 - 1,
    "of fewer bits": lambda n, a: n - numpy.int8(2),
    "truth": lambda n, a: n - numpy.bool_(True),
    "an array of one": lambda n, a: n - numpy.array(2.5),
    "function of one": lambda n, a: numpy.negative(a),
    "function of two": lambda n, a: numpy.subtract(n, 2),
    "outcome of a comparison": lambda n, a: (0 + (n > 4)) * numpy.int64(3),
    "comparison": lambda n, a: n > numpy.float64(4),
    "class": lambda n, a: 2.0 if isinstance(a * numpy.float64(2), numpy.float64) else 3.0,
    "rounded": lambda n, a: round(a * numpy.float64(1.37), 1),
    "rounded in NumPy's way": lambda n, a: round(numpy.float64(2.675) + n, 2),
    "rounded to a whole number": lambda n, a: round(a * numpy.float64(1.37)),
    "power": lambda n, a: numpy.int64(2) ** n - n ** numpy.float64(0.5),
    "divided by zero": lambda n, a: numpy.float64(1) / (n - 5),
}
MATH: dict[str, Compute] = {
    "root": lambda n, a: math.sqrt(1 - 0.9**n),
    "power": lambda n, a: math.pow(0.9, n),
    "schedule": lambda n, a: 0.5 * (1 + math.cos(math.pi * n / 10)),
    "logarithm": lambda n, a: math.log(n) - math.log1p(a),
    "whole numbers": lambda n, a: math.floor(a * 2) - math.ceil(n / 3),
    "divided with a rest": lambda n, a: divmod(n, 3)[0] - divmod(n / 8, a)[1] + divmod(17, n)[0],
    "divided": lambda n, a: round(n / 10, 1) // 0.1 - 7.3 // a,
    "truncated": lambda n, a: math.trunc(a * 2) - math.trunc(-n / 3),
    "of two": lambda n, a: math.atan2(n, 2) - math.fmod(a, 0.7),
    "of NumPy's": lambda n, a: math.sqrt(n * numpy.float64(2)),
    "as a value": lambda n, a: sum(map(math.fabs, (a, -n))),  # of these two, no recording computes the value
    "to a base": lambda n, a: math.log(n + 1, 3),
}
ASKED: dict[str, Compute] = {
    "finite": lambda n, a: 2.0 if math.isfinite(a * 1e308) else 3.0 - a,
    "no number": lambda n, a: 2.0 if math.isnan(a - n) or math.isinf(n) else 3.0 - a,
    "close": lambda n, a: math.isclose(n, 5) - a,
    "close enough": lambda n, a: math.isclose(n, a, rel_tol=0.5) - a,
}
ALL = {
    f"{kind}, {name}": compute
    for kind, every in {
        "comparisons": COMPARISONS,
        "rounded": ROUNDED,
        "numpy": NUMPYS,
        "math": MATH,
        "asked": ASKED,
    }.items()
    for name, compute in every.items()
}


def beside_eager(
    program: Callable[[Counts, Tensor], Tensor], change: Callable[[Counts, int], None] | None = None
) -> Any:
    """What jit tells of calls beside an eager twin: the same results, and in state the same values of the same classes."""
    mine, twin = Counts(), Counts()
    step = jit(lambda x: program(mine, x), on_refusal="eager")
    for call in range(10):
        if change is not None:
            change(mine, call)
            change(twin, call)
        x = torch.arange(3.0) + call
        assert_same(step(x), program(twin, x))
        assert [*map(repr, vars(mine).values())] == [*map(repr, vars(twin).values())]
    return step.statistics()


@pytest.mark.parametrize("what", ALL)
def test_what_is_stored_is_of_the_class_that_eager_stores(what: str) -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n, s.a = s.n + 1, s.a * 1.1
        s.made = ALL[what](s.n, s.a)
        return x - 1

    beside_eager(program)


@pytest.mark.parametrize("what", ALL)
def test_what_an_operator_is_given(what: str) -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n, s.a = s.n + 1, s.a * 1.1
        return x * ALL[what](s.n, s.a) - 1

    beside_eager(program)


def test_what_math_is_asked_of_a_number_is_a_branch() -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n += 1
        s.made = math.isclose(s.n, 50), math.isnan(s.a)
        return x - s.n if math.isfinite(s.n * 3e307) else x * 2 - s.n

    found = beside_eager(program)
    assert (found.refusals, found.recordings) == (0, 2) and found.replays >= 6


def test_comparisons_are_counted() -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n += 1
        s.hits += s.n > 3
        return x * s.hits - 1

    assert beside_eager(program).replays >= 7


def test_a_function_of_math_that_the_program_compares_or_stores_is_pythons_own() -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n += 1
        names = {math.exp: "exp"}
        s.made = names.get(math.exp, "another"), math.exp
        return x * s.n - (1 if s.made[1] is math.exp else 2)

    beside_eager(program)


@pytest.mark.compile
def test_functions_of_math_are_computed_beside_compiled_code() -> None:
    mine, twin = Counts(), Counts()

    def program(s: Counts, x: Tensor) -> Tensor:
        s.n += 1
        return x * math.sqrt(1 - 0.9**s.n) - math.floor(s.n / 2)

    step = jit(lambda x: program(mine, x), lower="inductor")
    for call in range(6):
        x = torch.arange(3.0) + call
        assert_same(step(x), program(twin, x))
    assert step.statistics().recordings == 1


def test_the_line_is_told_that_needs_the_number_itself() -> None:
    counts = Counts()

    def program(x: Tensor) -> Tensor:
        counts.n += 1
        return x * math.hypot(counts.n, 2)  # the line

    step = treeplay.jit(program, lower="aten")
    with pytest.warns(UserWarning, match="from 3 to 4") as told:
        for _ in range(4):
            step(torch.ones(2))
    line = inspect.getsource(program).splitlines().index("        return x * math.hypot(counts.n, 2)  # the line")
    where = f"{__file__}:{inspect.getsourcelines(program)[1] + line}"
    assert f"it needs the number itself at {where}" in str(told[0].message)


BY_REPLAYS = ["rounded, tens", "rounded, digits", "numpy, integer behind", "numpy, float before"]
BY_REPLAYS += [f"math, {name}" for name in MATH if name not in ("as a value", "to a base")]


@pytest.mark.parametrize("what", BY_REPLAYS)
def test_it_takes_one_recording(what: str) -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n, s.a = s.n + 1, s.a * 1.1
        s.made = ALL[what](s.n, s.a)
        return x * s.made - 1

    found = beside_eager(program)
    assert (found.recordings, found.refusals) == (1, 0)


def test_what_is_rounded_feeds_the_next_call() -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.a = round(s.a * 1.37, 2)
        return x * s.a - 1

    assert beside_eager(program).recordings == 1


def test_a_float_of_numpys_counts() -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.hits = s.hits * 0.5 + 1
        return x * s.hits - 1

    def change(s: Counts, call: int) -> None:
        if call == 0:
            s.hits = numpy.float64(3)

    found = beside_eager(program, change)
    assert (found.recordings, found.refusals) == (1, 0)


def test_a_float_of_numpys_in_place_of_one_of_pythons() -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.a = s.a * 0.5
        return x * s.a - 1

    def change(s: Counts, call: int) -> None:
        if call in (4, 8):
            s.a = (numpy.float64 if call == 4 else float)(0.7)

    assert beside_eager(program, change).replays >= 6


def test_a_rate_of_numpys_that_the_program_sets() -> None:
    kept: list[list[str]] = []
    for wrap in (lambda step: step, jit):
        param = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([param], lr=0.1)

        def step(x: Tensor, param: Any = param, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            (param * x).sum().backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= 0.9
            return param.detach() - 1

        run, told = wrap(step), []
        for call in range(8):
            if call == 4:
                optimizer.param_groups[0]["lr"] = numpy.float64(0.3)
            told.append(f"{run(torch.arange(2.0)).tolist()} {optimizer.param_groups[0]['lr']!r}")
        kept.append(told)
    assert kept[0] == kept[1]


FLOATS, INTEGERS = torch.arange(3.0), torch.arange(3)
LEAVING: dict[str, tuple[Callable[[Tensor, int], Tensor], Tensor, list[int]]] = {
    "power": (lambda x, n: x * n**2 - 1, FLOATS, [1, 2, 3, 2**31, -(2**40), 2**33, 4]),
    "power, integers": (lambda x, n: x * n**2 - 1, INTEGERS, [1, 2, 3, 2**31, -(2**40), 2**33, 4]),
    "product": (lambda x, n: x * (n * 2**62) - 1, FLOATS, [1, -1, -2, 2, 3, -3, 0, 4, 1]),
    "sum": (lambda x, n: x + n * 2, INTEGERS, [1, 2, 3, 2**62, -(2**62), 2**63 - 1, 4]),
    "filled": (lambda x, n: x.clone().fill_(n * 2), INTEGERS, [1, 2, 3, 2**62, -(2**62) - 1, 5]),
    "scale": (lambda x, n: torch.add(x, x, alpha=n * 2 - 1), INTEGERS, [1, 2, 3, 2**62, 2**62 + 1, -(2**62), 5]),
    "rounded": (lambda x, n: x + round(n, -2), INTEGERS, [149, 250, 2**63 - 1, 350]),
    "tensor of numbers": (lambda x, n: x + torch.tensor([n * 2, n]), INTEGERS[:2], [1, 2, 3, 2**62, 5]),
}


@pytest.mark.parametrize("lower", ["aten", pytest.param("inductor", marks=pytest.mark.compile)])
@pytest.mark.parametrize("what", LEAVING)
def test_integers_that_leave_64_bits_do_what_eager_does(what: str, lower: str) -> None:
    program, x, numbers = LEAVING[what]
    step = jit(program, lower=lower, on_refusal="eager")
    for n in numbers:
        assert outcome(lambda n=n: step(x, n)) == outcome(lambda n=n: program(x, n))
    assert step.statistics().replays > 0


def outcome(call: Callable[[], Tensor]) -> Any:
    try:
        return call().tolist()
    except (ValueError, OverflowError, RuntimeError) as error:
        return type(error), str(error)


DIVIDING: dict[str, Compute] = {
    "quotient": lambda n, a: 1.0 / (n - 5),
    "remainder": lambda n, a: 7 % (n - 5),
    "power": lambda n, a: (a * 1e200) ** (n - 4),
    "rounded": lambda n, a: round(a * 10.0 ** (60 * n) * 1e9),
    "root": lambda n, a: math.sqrt(5 - n),
    "exponential": lambda n, a: math.exp(200.0 * n),
}


@pytest.mark.parametrize("what", DIVIDING)
def test_arithmetic_that_raises_does_so_as_in_eager(what: str) -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n += 1
        try:
            s.made = DIVIDING[what](s.n, s.a)
        except (ArithmeticError, ValueError) as error:
            s.made = type(error)
        return x - 1

    beside_eager(program)


RAISING_FIRST: dict[str, Compute] = {
    "quotient": lambda n, a: 1 / (n // 4 % 2),
    "quotient of floats": lambda n, a: 1.5 / (n // 4 * a),
    "whole quotient": lambda n, a: 7 // (n // 4 % 2) - n,
    "whole quotient of floats": lambda n, a: 1.5 // (n // 4 % 2) - a,
    "remainder": lambda n, a: 7 % (n // 4 % 2 * 3),
    "remainder of floats": lambda n, a: 7.5 % (n // 4 * a),
    "both": lambda n, a: sum(divmod(7, n // 4 % 2 * 2)),
    "negative power": lambda n, a: (n // 4 % 2) ** -1 - n,
    "power": lambda n, a: 10.0 ** (400 - 200 * (n // 4)) / 1e190,
    "power of math": lambda n, a: math.pow(0.0, n - 3.5),
    "exponential": lambda n, a: math.exp(800 - 798 * (n // 4)),
    "hyperbolic sine": lambda n, a: math.sinh(800 - 798 * (n // 4)),
    "root": lambda n, a: math.sqrt(n - 4),
    "logarithm": lambda n, a: math.log(n - 3),
    "arc cosine": lambda n, a: math.acos(4 / n),
    "remainder of math": lambda n, a: math.fmod(7.0, n // 4 % 2),
    "integer too big for a float": lambda n, a: 10 ** (400 - 200 * (n // 4)) * 1e-190,
    "sine": lambda n, a: math.sin(math.inf if n < 4 else n) - a,
    "whole number": lambda n, a: math.floor((a * 1e200) ** (1 if n >= 4 else 2)) % 7,
}


@pytest.mark.parametrize("what", RAISING_FIRST)
def test_a_recording_of_a_call_that_handled_what_arithmetic_raised_is_for_such_calls(what: str) -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n, s.a = s.n + 1, s.a * 1.1
        try:
            made = RAISING_FIRST[what](s.n, s.a)
        except (ArithmeticError, ValueError):
            made = 0.5
        return x * made - 1

    beside_eager(program)


def test_calls_that_divide_by_zero_and_that_do_not_have_a_recording_each() -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n += 1
        with contextlib.suppress(ZeroDivisionError):
            return x * (6 / (s.n // 3 % 2)) - s.n
        return x - 7

    facts = beside_eager(program)
    assert facts.recordings == 2 and facts.replays >= 4


def test_a_rate_that_cannot_be_divided_by() -> None:
    mine, twin = ([torch.zeros(3, requires_grad=True)] for _ in range(2))
    optimizers = [torch.optim.SGD(each, lr=0.0) for each in (mine, twin)]

    def program(optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        try:
            factor = 1 / optimizer.param_groups[0]["lr"]
        except ZeroDivisionError:
            factor = 0.5
        return x * factor - 1

    step = jit(lambda x: program(optimizers[0], x))
    for rate in (0.0, 0.0, 0.0, 0.1, 0.2, 0.5, 0.0):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
        assert_same(step(FLOATS), program(optimizers[1], FLOATS))


def test_an_argument_of_which_there_is_no_logarithm() -> None:
    def program(x: Tensor, k: float) -> Tensor:
        try:
            factor = math.log(k)
        except ValueError:
            factor = -1.0
        return x * factor - 1

    step = jit(program, on_refusal="eager")
    for k in (-2.0, -1.0, 0.0, -0.5, 2.0, 3.0, -4.0, 5.0):
        assert_same(step(FLOATS, k), program(FLOATS, k))


UNUSED: dict[str, Compute] = {
    "quotient": lambda n, a: 1 / (n // 5 - 1),
    "of what cannot be computed": lambda n, a: 2 * (1 / (5 - n)) + 1,
    "root": lambda n, a: math.sqrt(5 - n),
    "exponential": lambda n, a: math.exp(n * 120),
    "power": lambda n, a: (a * 1e50) ** n,
}


@pytest.mark.parametrize("what", UNUSED)
def test_arithmetic_whose_result_is_not_used_raises_all_the_same(what: str) -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n += 1
        try:
            UNUSED[what](s.n, s.a)
        except ArithmeticError:
            return x - 7
        except ValueError:
            return x - 9
        return x * 3 - s.n

    assert beside_eager(program).replays >= 2


def test_arithmetic_that_raises_leaves_state_as_eager_does() -> None:
    mine, twin = Counts(), Counts()

    def program(s: Counts, x: Tensor) -> Tensor:
        s.n += 1
        s.a = 1.0 / (s.n - 5)
        return x * s.a - 1

    def call(run: Callable[[], Tensor]) -> Any:
        try:
            return run().tolist()
        except ZeroDivisionError as error:
            return str(error)

    step = jit(lambda x: program(mine, x), on_refusal="eager")
    for _ in range(9):
        assert call(lambda: step(FLOATS)) == call(lambda: program(twin, FLOATS))
        assert (mine.n, mine.a) == (twin.n, twin.a)
    assert step.statistics().replays >= 5


def divides(s: Counts, x: Tensor) -> Tensor:
    return x * (1.0 / s.a) - 1


def divides_and_handles(s: Counts, x: Tensor) -> Tensor:
    try:
        return divides(s, x)
    except ZeroDivisionError:
        return x - 7


@pytest.mark.parametrize("lower", ["aten", pytest.param("inductor", marks=pytest.mark.compile)])
@pytest.mark.parametrize("compute", [divides, divides_and_handles])
@pytest.mark.parametrize("writes", [False, True])
def test_a_number_for_an_operator_that_cannot_be_computed(
    compute: Callable[[Counts, Tensor], Tensor], writes: bool, lower: str
) -> None:
    """What was to be done before it is done once, as in eager, and counted in no other way."""

    def program(s: Counts, total: Tensor, x: Tensor) -> Tensor:
        if not writes:
            return compute(s, x)
        total.mul_(3).add_(1)
        s.n += 1
        result = compute(s, x)
        total.sub_(result)
        return result

    def call(run: Callable[[], Tensor]) -> Any:
        try:
            return run().tolist()
        except ZeroDivisionError as error:
            return str(error)

    mine, twin, totals = Counts(), Counts(), (torch.zeros(3), torch.zeros(3))
    step = jit(lambda x: program(mine, totals[0], x), lower=lower)
    for a in (1.0, 2.0, 4.0, 0.0, 8.0, 0.0, 0.5):
        mine.a = twin.a = a
        assert call(lambda: step(FLOATS)) == call(lambda: program(twin, totals[1], FLOATS))
        assert (mine.n, totals[0].tolist()) == (twin.n, totals[1].tolist())
    facts = step.statistics()
    assert (facts.recordings, facts.replays) == (1, 4)
    assert facts.not_replayed == {"observed": 1, "a replay raised": 2}
    assert not treeplay.observe.internal_errors()


def test_an_integer_that_left_64_bits_in_state_comes_back() -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n += 1
        return x * (s.n * 2**40) - 1

    def change(s: Counts, call: int) -> None:
        if call in (5, 7):
            s.n = 2**22 if call == 5 else 1

    def with_exceptions(s: Counts, x: Tensor) -> Tensor:
        try:
            return program(s, x)
        except OverflowError:
            return x - 2

    assert beside_eager(with_exceptions, change).replays >= 5


OF_LARGE: dict[str, Callable[[int], float]] = {
    "divided by a constant": lambda n: n / 3,
    "times a float": lambda n: n * 0.5,
    "less a float": lambda n: 0.5 - n,
    "by a float": lambda n: n // 2.0,
    "as a float": lambda n: float(n),
}


@pytest.mark.parametrize("what", OF_LARGE)
def test_the_error_of_an_integer_that_is_too_large_for_a_float_is_noticed(what: str) -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        large = 1
        for _ in range(20):
            large = large * s.n
        try:
            OF_LARGE[what](large)
        except OverflowError:
            return x * 2 - 1
        return x * 3 - 1

    def change(s: Counts, call: int) -> None:
        s.n = (3, 5, 2, 7, 4, 6, 2**60, 9, 2**61, 8)[call]

    assert beside_eager(program, change).replays >= 3


def test_an_integer_that_cannot_get_too_large_for_a_float_is_no_condition() -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n += 1
        _ = (s.n * 3 - 1) / 7 * 0.5  # which nothing computes
        return x * (s.n * 0.5) - 1

    step = jit(program)
    state = Counts()
    for _ in range(4):
        step(state, torch.ones(2))
    assert "is not None" not in step.sources()


FLOORS: dict[str, Compute] = {
    "an integer by a float": lambda n, a: 10 // a,
    "a float by a float": lambda n, a: -1.0 // a,
    "by a float": lambda n, a: a // 0.1,
    "an integer by a constant": lambda n, a: n // 0.1,
    "two that vary": lambda n, a: n // a - a // n,
    "by what is computed": lambda n, a: 3 // (a / 10) - (n + 1) // -a,
    "NumPy's": lambda n, a: a // numpy.float64(0.1),
    "the outcome of a comparison": lambda n, a: 7 // (a + (n > 2)),
}


@pytest.mark.parametrize("lower", ["aten", pytest.param("inductor", marks=pytest.mark.compile)])
@pytest.mark.parametrize("what", FLOORS)
def test_floats_are_divided_as_python_does_it(what: str, lower: str) -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.made = FLOORS[what](s.n, s.a)
        return x * FLOORS[what](s.n, s.a) - 1

    mine, twin = Counts(), Counts()
    step, x = jit(lambda x: program(mine, x), lower=lower), torch.arange(3.0, dtype=torch.float64)
    for n, a in enumerate((1.0, 0.5, 0.1, 0.2, -0.3, math.inf, -math.inf, math.nan, 1e-300, 0.7), start=1):
        mine.n, mine.a, twin.n, twin.a = n, a, n, a
        assert_same(step(x), program(twin, x))
        assert repr(mine.made) == repr(twin.made)
    assert step.statistics().replays >= 7


def test_a_remainder_needs_no_condition() -> None:
    step = jit(lambda x, n: x * (n**3 % 7) - 1)
    for n in range(6):
        step(FLOATS, n)
    (source,) = step.sources()
    assert "<= ((" not in source


Use = Callable[[Tensor, float], Tensor]
DISTRIBUTIONS: dict[str, Use] = {
    "a sample": lambda x, a: Normal(x, a).sample() - x,
    "a sample with gradients": lambda x, a: Normal(x, a).rsample() * a,
    "samples of numbers alone": lambda x, a: Normal(a, 2 * a).sample((3,)) - x,
    "a density": lambda x, a: Normal(x, a).log_prob(x * 2 - 1),
    "an entropy": lambda x, a: Normal(x, a).entropy() - x,
    "a distance": lambda x, a: kl_divergence(Normal(x, a), Normal(0.0, 1.0)),
    "bounds": lambda x, a: Uniform(-a, a + 1).sample((3,)) - x,
    "a probability": lambda x, a: Bernoulli(a / 9).sample((3,)) - x,
    "without validation": lambda x, a: Exponential(a, validate_args=False).sample((3,)) - x,
}


@pytest.mark.parametrize("what", DISTRIBUTIONS)
def test_a_distribution_of_a_number_that_varies(what: str) -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.a *= 0.75
        return DISTRIBUTIONS[what](x, s.a)

    assert_as_eager(program)


def clipped_by_norm(x: Tensor, most: float) -> Tensor:
    weight = torch.nn.Parameter(torch.ones(3))
    (weight * x).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_([weight], most)
    assert weight.grad is not None
    return weight.grad - norm


def clipped_by_value(x: Tensor, most: float) -> Tensor:
    weight = torch.nn.Parameter(torch.ones(3))
    (weight * x).sum().backward()
    torch.nn.utils.clip_grad_value_([weight], most)
    assert weight.grad is not None
    return weight.grad - x


@pytest.mark.parametrize("clipped", [clipped_by_norm, clipped_by_value])
@pytest.mark.parametrize("number", [lambda s: s.a, lambda s: s.n], ids=["a float", "an integer"])
def test_gradients_are_clipped_at_a_number_that_varies(clipped: Use, number: Callable[[Counts], Any]) -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.a, s.n = s.a * 0.75, s.n + 1
        return clipped(x, number(s))

    assert_as_eager(program)
    assert "float" not in vars(sys.modules["torch.nn.utils.clip_grad"])


def assert_as_eager(program: Callable[[Counts, Tensor], Tensor]) -> None:
    """In one recording that draws as eager does."""
    mine, twin = Counts(), Counts()
    step = jit(lambda x: program(mine, x))
    for call in range(8):
        x = torch.arange(3.0) + 0.5 + call
        found = []
        for s, run in ((mine, step), (twin, lambda x: program(twin, x))):
            torch.manual_seed(call)
            found.append((run(x).detach(), s.a, s.n, torch.rand(1)))
        assert_same(*found)
    assert step.statistics().recordings == 1 and step.statistics().replays >= 5


def test_a_validated_number_that_varies_raises_as_in_eager() -> None:
    def program(x: Tensor, scale: float) -> Tensor:
        return Normal(x, scale, validate_args=True).rsample() - x

    step = jit(program)
    for scale in (1.0, 0.75, 0.5, 0.25, -1.0, 0.125):
        found = []
        for run in (step, program):
            torch.manual_seed(0)
            try:
                found.append(run(torch.ones(3), scale))
            except ValueError as error:
                found.append(str(error))
        if isinstance(found[1], str):
            assert found[0] == found[1]
        else:
            assert_same(*found)


@pytest.mark.parametrize(
    "draw", [lambda x, a: torch.normal(x, a), lambda x, a: x.clone().uniform_(-a, a)], ids=["normal", "uniform_"]
)
def test_an_operator_that_draws_needs_its_numbers(draw: Use) -> None:
    """A standard draw that is scaled afterwards differs from it in the last bits."""
    counts = Counts()

    def program(x: Tensor) -> Tensor:
        counts.a *= 0.75
        return draw(x, counts.a)

    step = treeplay.jit(program, lower="aten")
    with pytest.warns(UserWarning, match="needs the number itself at"):
        for _ in range(5):
            step(torch.ones(3))
