"""Two runs of one program are compared line by line before their numbers are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.opaque import call_of
from treeplay.trace.log import SYMBOLIC, LoggedCall, first_difference, numbers_in, result_entry
from treeplay.trace.observe import observe
from treeplay.values.location import Location


def entry(op: str, line: int, *numbers: Any) -> LoggedCall:
    return LoggedCall(op, Location("program.py", line), numbers)


def test_equal_runs_have_no_difference() -> None:
    run = [entry("mul", 1, 2.0), entry("add", 2, 1)]
    assert first_difference(run, list(run)) is None


@pytest.mark.parametrize(("was", "now"), [(1.0, 2.0), (1, 2), (True, False), (0.0, float("nan"))])
def test_a_number_that_differs_is_named_with_its_line(was: Any, now: Any) -> None:
    reason = first_difference([entry("mul", 7, was)], [entry("mul", 7, now)])
    assert reason is not None and reason.op == "mul" and reason.where == Location("program.py", 7)
    assert repr(was) in reason.why and repr(now) in reason.why and reason.advice


@pytest.mark.parametrize(("was", "now"), [(1.0, SYMBOLIC), (SYMBOLIC, 2.0), (float("nan"), float("nan")), (2, 2.0)])
def test_symbols_and_nans_are_no_difference(was: Any, now: Any) -> None:
    assert first_difference([entry("mul", 7, was)], [entry("mul", 7, now)]) is None


@pytest.mark.parametrize(
    ("was", "now", "is_same"),
    [
        (float("nan"), float("nan"), True),
        (0.0, -0.0, False),
        (1.5, 2.5, False),
        (SYMBOLIC, SYMBOLIC, True),
        (1.5, SYMBOLIC, False),
    ],
)
def test_a_call_has_the_numbers_of_another(was: Any, now: Any, is_same: bool) -> None:
    assert entry("mul", 7, 3, was).has_numbers_of(entry("add", 8, 3, now)) is is_same


def test_a_call_with_more_numbers_has_not_those_of_another() -> None:
    assert not entry("mul", 7, 3).has_numbers_of(entry("mul", 7, 3, 4))


def test_operators_that_only_one_run_has_are_skipped() -> None:
    first = [entry("zeros", 1, 3.0), entry("mul", 2, 5.0), entry("add", 3, 1.0)]
    second = [entry("mul", 2, 5.0), entry("clone", 2), entry("add", 3, 2.0)]
    reason = first_difference(first, second)
    assert reason is not None and reason.op == "add"


def test_a_line_that_one_run_calls_more_often_is_found_among_the_others() -> None:
    """Autograd takes views of fakes anew after a write, by their own operator."""
    first = [entry("select", 1, number) for number in (0, 0, 1, 1)]
    second = [entry("select", 1, number) for number in (0, 0, 0, 1, 1, 1)]
    assert first_difference(first, second) is None and first_difference(second, first) is None
    reason = first_difference(first, [entry("select", 1, number) for number in (0, 0, 0, 2, 2, 2)])
    assert reason is not None and "1 in the first call and 0 in the second" in reason.why


def test_a_number_that_moves_on_is_found_where_one_run_has_more_of_another_line() -> None:
    first = [entry("select", 1, 0), *(entry("mul", 2, float(number)) for number in (1, 2, 3))]
    second = [entry("select", 1, 0)] * 2 + [entry("mul", 2, float(number)) for number in (2, 3, 4)]
    reason = first_difference(first, second)
    assert reason is not None and reason.op == "mul"


def test_numbers_are_found_in_nested_arguments() -> None:
    assert list(numbers_in(((1, [2.5, None]), {"a": True, "b": "text"}))) == [1, 2.5, True]


def test_a_result_that_differs_says_so() -> None:
    reason = first_difference([result_entry({"n": 3})], [result_entry({"n": 4})])
    assert reason is not None and reason.op == "result" and "returns 3 in the first call and 4" in reason.why


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), max_size=12), st.data())
def test_a_changed_number_is_found_in_any_aligned_run(lines: list[tuple[int, int]], data: Any) -> None:
    run = [entry("op", line, number) for line, number in lines]
    assert first_difference(run, list(run)) is None
    if run:
        index = data.draw(st.integers(0, len(run) - 1))
        changed = [*run[:index], entry("op", lines[index][0], 99), *run[index + 1 :]]
        reason = first_difference(run, changed)
        assert reason is not None and "99" in reason.why


def test_a_call_with_another_set_of_tensors_is_another_call() -> None:
    def entry_of(flag: bool, **tensors: Any) -> LoggedCall:
        return LoggedCall.of("attention", Location("program.py", 1), (torch.ones(1), flag), tensors, ("library.py", 5))

    causal, masked = entry_of(True), entry_of(False, mask=torch.ones(1))
    assert first_difference([causal], [masked]) is None
    assert first_difference([causal], [entry_of(False)]) is not None
    assert first_difference([masked], [entry_of(True, mask=torch.ones(1))]) is not None


def test_what_autograds_nodes_compute_may_come_in_another_order() -> None:
    """The trace of a library that takes another way has other nodes; the numbers of both follow from the forward's."""
    ways = iter(
        [
            lambda x: x.view(3, 2).view(6),
            lambda x: x.view(6).view(1, 6).view(6),
        ]
    )

    def program(x: torch.Tensor) -> None:
        (next(ways)(x) * 2.0).sum().backward()

    logs = [observe(program, call_of(torch.ones(2, 3, requires_grad=True)))[1] for _ in range(2)]
    assert [sum("view" in entry.op for entry in log) for log in logs] == [4, 6]
    assert first_difference(*logs) is None


def test_a_number_in_a_hook_is_compared() -> None:
    numbers = iter([2.0, 3.0])

    def program(x: torch.Tensor) -> None:
        y = x * 1.0
        y.register_hook(lambda gradient: gradient * next(numbers))
        y.sum().backward()

    logs = [observe(program, call_of(torch.ones(2, requires_grad=True)))[1] for _ in range(2)]
    reason = first_difference(*logs)
    assert reason is not None and "2.0 in the first call and 3.0 in the second" in reason.why
