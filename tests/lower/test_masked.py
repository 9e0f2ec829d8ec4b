"""Assignments of one number under a mask, where a stream is captured: a choice between values, which asks the host nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from support import assert_same, call_of
from support.compiled import SeenOperators
from treeplay.lower.stream import lower_for_stream
from treeplay.trace.jit import trace
from treeplay.wrap.found import current_inputs

READS_A_MASK = {
    "aten.index_put_.default",
    "aten.index_put.default",
    "aten.masked_fill_.Tensor",
    "aten.masked_fill.Tensor",
}


def assign(where: Callable[[Tensor], Any], value: Any) -> Callable[[Tensor], Tensor]:
    """A program that writes to a part of its argument, and goes on with what is there then."""

    def program(x: Tensor) -> Tensor:
        x[where(x)] = value
        return x * 2 - x.roll(1, 0)

    return program


ONE, FEW = torch.tensor(0.25), torch.tensor([0.5])


@pytest.mark.parametrize(
    "program",
    [
        assign(lambda x: x > 0, 0.25),
        assign(lambda x: x[:, 0, 0] > 0, 0.25),
        assign(lambda x: (slice(None), x[0] > 0), -1.5),
        assign(lambda x: (slice(None), x[0, :, 0] > 0), -1.5),
        assign(lambda x: (slice(1, None), x[0, :, 0] > 0, slice(None, 2)), -1.5),
        assign(lambda x: (..., x[0, 0] > 0), ONE),
        assign(lambda x: x > 0, FEW),
        lambda x: x.index_put((x > 0,), ONE) - x * 2,
        lambda x: x.masked_fill(x > 0, ONE) - x * 2,
        lambda x: x.mul_(2).masked_fill_(x > 0, torch.tensor(3)) - 1,
    ],
    ids=[
        "all",
        "rows",
        "columns and depth",
        "columns",
        "a part",
        "the last",
        "one of one",
        "new",
        "filled anew",
        "filled",
    ],
)
def test_one_number_is_chosen(program: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, 4, 5)
    assert READS_A_MASK.isdisjoint(operators_of_a_run_like_eagers(program, x))


@pytest.mark.parametrize(
    "program",
    [
        assign(lambda x: [2, 0], 0.25),
        assign(lambda x: (x[:, 0, 0] > 0, [0, 2, 1]), 0.25),
        lambda x: x.index_put_((x > 0,), ONE, accumulate=True) - x * 2,
    ],
    ids=["indices", "a mask and indices", "added"],
)
def test_what_is_no_choice_is_called_as_it_is(program: Callable[[Tensor], Tensor]) -> None:
    x = torch.arange(60.0).view(3, 4, 5) + 1
    assert "aten.index_put_.default" in operators_of_a_run_like_eagers(program, x)


def operators_of_a_run_like_eagers(program: Callable[[Tensor], Tensor], x: Tensor) -> set[str]:
    """What a lowered program calls, whose results and writes are those of the program."""
    mine, theirs = x.clone(), x.clone()
    made = trace(program, call_of(x.clone()))
    body = lower_for_stream(made.graph, torch.device("cpu")).body
    assert body is not None
    given = current_inputs(made.signature, call_of(mine))
    with SeenOperators() as log:
        found = body(given)
    expected = program(theirs)
    assert_same(found[0], expected)
    assert_same(mine, theirs)
    return set(log.seen)
