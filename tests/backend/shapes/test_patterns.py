"""Wplus1: a graph that writes its inputs is right for every way in which they share memory, in any order of calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeplay.backend import wrapped as wrapped_module
from treeplay.backend.inner import boxed
from treeplay.torch_compile import compile_graph
from wrap.aot.oracle import numbers


def views(one: slice, other: slice) -> Callable[[], list[Any]]:
    def make() -> list[Any]:
        x = numbers(6)
        return [x[one], x[other]]

    return make


PATTERNS: dict[str, Callable[[], list[Any]]] = {
    "distinct": lambda: [numbers(3), numbers(3) + 1],
    "same": lambda: [numbers(3)] * 2,
    "equal": views(slice(0, 3), slice(0, 3)),
    "overlapping": views(slice(0, 3), slice(1, 4)),
    "disjoint": views(slice(0, 3), slice(3, 6)),
}


def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(2)
    return a + b


def check(compiled: Callable[..., Any], pattern: str) -> None:
    expected_args, args = PATTERNS[pattern](), PATTERNS[pattern]()
    expected, result = function(*expected_args), compiled(*args)
    result = result[0] if isinstance(result, tuple) else result
    assert torch.equal(expected, result), pattern
    assert all(torch.equal(*pair) for pair in zip(expected_args, args, strict=True)), pattern


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(PATTERNS, 2)))
def test_Wplus1_a_graph_compiled_for_one_pattern_is_right_for_another(first: str, second: str) -> None:
    compiled = compile_graph(torch.fx.symbolic_trace(function), PATTERNS[first](), inner="aten")
    for pattern in (first, second, first, second):
        check(compiled, pattern)


@pytest.mark.parametrize("first", PATTERNS)
def test_Wplus1_torch_compile_is_right_for_every_pattern(first: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="treeplay", options={"inner": "aten"})
    for pattern in (first, *PATTERNS, first):
        check(compiled, pattern)


def test_Wplus1_each_pattern_is_compiled_once() -> None:
    compiled: list[Any] = []

    def inner(module: Any, inputs: Any) -> Any:
        compiled.append(module)
        return boxed(module)

    call = compile_graph(torch.fx.symbolic_trace(function), PATTERNS["distinct"](), inner=inner)
    for _ in range(3):
        for pattern in ("distinct", "disjoint", "same", "overlapping", "equal"):
            check(call, pattern)
    assert len(compiled) == 4  # disjoint slices need nothing that distinct tensors do not


def test_Wplus1_a_pattern_that_is_refused_runs_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap = wrapped_module.wrap_function

    def refuse_copies(program: Any, inputs: Any, compilers: Any, **options: Any) -> Any:
        if inputs[0] is inputs[1]:
            from treeplay.wrap.aot.tracing.findings import refusal_to_wrap

            raise refusal_to_wrap("write", "refused for this test", None)
        return wrap(program, inputs, compilers, **options)

    monkeypatch.setattr(wrapped_module, "wrap_function", refuse_copies)
    call = compile_graph(torch.fx.symbolic_trace(function), PATTERNS["distinct"](), inner="aten")
    with pytest.warns(UserWarning, match="refused for this test"):
        check(call, "same")
    for pattern in ("distinct", "same", "disjoint"):
        check(call, pattern)


def test_a_parameter_that_is_frozen_and_trained_again_gets_its_gradient() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    def step(x: torch.Tensor) -> torch.Tensor:
        return (model(x) ** 2).sum()

    compiled = torch.compile(step, backend="treeplay", options={"inner": "aten"})
    for is_trained in (False, True, False, True):
        model[0].requires_grad_(is_trained)
        found, expected = (
            torch.autograd.grad(call(numbers(2, 3)), [p for p in model.parameters() if p.requires_grad])
            for call in (compiled, step)
        )
        assert len(found) == (4 if is_trained else 2)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
