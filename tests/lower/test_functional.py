"""Traced graphs made functional: what is written through expanded tensors, and what cannot be written."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support import assert_same
from support.opaque import call_of
from treeplay.errors import LoweringError
from treeplay.lower.functional import TensorsForNumbers, make_functional
from treeplay.lower.numbers import split_numbers
from treeplay.trace.jit import trace

INFINITE = torch.tensor([float("inf"), -0.0, 1.0])


def test_writes_through_a_tensor_of_its_own_size_are_no_sums_of_differences() -> None:
    def program(x: torch.Tensor) -> None:
        x.expand(3).mul_(2)[1:].sub_(0.0)

    graph = trace(program, call_of(INFINITE.clone())).graph
    run: Any = TensorsForNumbers(graph, split_numbers(graph))
    specs = [node.meta["spec"] for node in graph.nodes if node.op == "placeholder"]
    module, _ = make_functional(run.with_vector, specs, {})
    x, expected = INFINITE.clone(), INFINITE.clone()
    module(x)
    program(expected)
    assert_same(x, expected)
    assert_same(x.signbit(), expected.signbit())


def test_an_operator_of_which_torchs_rule_knows_less_is_left_to_another_lowering() -> None:
    generator = torch.Generator()
    graph = trace(
        lambda x: x / torch.empty_like(x).exponential_(2.0, generator=generator), call_of(torch.ones(3))
    ).graph
    run: Any = TensorsForNumbers(graph, split_numbers(graph))
    specs = [node.meta["spec"] for node in graph.nodes if node.op == "placeholder"]
    with pytest.raises(LoweringError, match=r"generator is not supported in refs$"):
        make_functional(run.with_vector, specs, {})
