"""Graphs compiled by hand: a call has inputs, parameters and modes like those that its graph was compiled for, or is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from support import assert_same
from treeplay.errors import UsageError
from treeplay.torch_compile import compile_graph
from wrap.aot.oracle import numbers

INNERS = ["aten", pytest.param("inductor", marks=pytest.mark.compile)]
every_inner = pytest.mark.parametrize("inner", INNERS)


def doubled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    total = 3 * x.sum() + w[0]
    w.mul_(2)
    return total - x[4]


GRAPH = torch.fx.symbolic_trace(doubled)


class Held(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = torch.nn.Parameter(numbers(2, 3))
        self.register_buffer("b", numbers(3) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.p - self.b


@every_inner
@pytest.mark.parametrize(
    ("x", "w", "told"),
    [
        (numbers(9), numbers(5), r"argument 0 \(`x`\) has the shape \[9\] instead of \[5\]"),
        (numbers(5), numbers(3), r"argument 1 \(`w`\) has the shape \[3\] instead of \[5\]"),
        (numbers(5, 5), numbers(5), r"argument 0 \(`x`\) has the shape \[5, 5\] instead of \[5\]"),
        (numbers(10)[::2], numbers(5), r"argument 0 \(`x`\) has the strides \(2,\) instead of \(1,\)"),
        (numbers(5).double(), numbers(5), r"argument 0 \(`x`\) has the dtype torch.float64 instead of torch.float32"),
        (numbers(5), numbers(5).to_sparse(), r"argument 1 \(`w`\) has another layout instead of \(1,\)"),
        (numbers(5), numbers(5).to("meta"), r"argument 1 \(`w`\) has the device meta instead of cpu"),
    ],
)
def test_an_input_of_another_layout_is_told_and_nothing_has_run(inner, x, w, told):
    compiled = compile_graph(GRAPH, [numbers(5), numbers(5)], inner=inner)
    before = w.clone()
    with pytest.raises(UsageError, match=told):
        compiled(x, w)
    assert w.device.type == "meta" or torch.equal(w.to_dense(), before.to_dense())
    given, expected = numbers(5), numbers(5)
    assert_same([compiled(numbers(5), given), given], [doubled(numbers(5), expected), expected])


@every_inner
@pytest.mark.parametrize("count", [1, 6])
def test_an_input_with_other_strides_that_reaches_a_written_one_is_told(inner, count, device):
    def program(x: torch.Tensor, *written: torch.Tensor) -> torch.Tensor:
        total = 3 * x.sum()
        for tensor in written:
            total = total + tensor[0]
            tensor.mul_(2)
        return total - x[2]

    names = [f"w{k}" for k in range(count)]
    graph = torch.fx.symbolic_trace(eval(f"lambda x, {', '.join(names)}: f(x, {', '.join(names)})", {"f": program}))
    compiled = compile_graph(graph, [numbers(5).to(device) + k for k in range(count + 1)], inner=inner)
    memory, others = numbers(40).to(device), [numbers(5).to(device) + k for k in range(count - 1)]
    # Laid out as when it was compiled, the first would end where the second begins.
    with pytest.raises(UsageError, match="has the strides"):
        compiled(memory[9:22:3], memory[14:19], *others)
    assert torch.equal(memory, numbers(40).to(device))


@every_inner
def test_the_stride_of_a_dimension_of_one_element_is_of_no_account(inner):
    compiled = compile_graph(torch.fx.symbolic_trace(lambda x: x * 2 - x.sum()), [numbers(1, 4)], inner=inner)
    given = numbers(2, 4)[::2]  # a row, and the step to the next one that is not there
    assert given.stride() == (8, 1)
    assert torch.equal(compiled(given), given * 2 - given.sum())


@every_inner
def test_a_number_is_the_one_that_the_graph_was_compiled_for(inner):
    compiled = compile_graph(torch.fx.symbolic_trace(lambda x, n: x * n - n), [numbers(3), 3], inner=inner)
    assert torch.equal(compiled(numbers(3), 3), numbers(3) * 3 - 3)
    for other in (4, 3.0, True):
        with pytest.raises(UsageError, match=rf"argument 1 \(`n`\) has the value {other} instead of 3"):
            compiled(numbers(3), other)


@every_inner
def test_leaves_of_containers_are_looked_at(inner):
    graph = torch.fx.symbolic_trace(lambda pair: pair[0]["a"] - 2 * pair[1])
    compiled = compile_graph(graph, [[{"a": numbers(3)}, numbers(3) + 1]], inner=inner)
    assert torch.equal(compiled([{"a": numbers(3)}, numbers(3) + 1]), numbers(3) - 2 * (numbers(3) + 1))
    with pytest.raises(UsageError, match=r"argument 1 has the shape \[4\] instead of \[3\]"):
        compiled([{"a": numbers(3)}, numbers(4)])


@every_inner
@pytest.mark.parametrize(
    "change",
    [
        lambda held: setattr(held.p, "data", numbers(3, 2).t()),
        lambda held: setattr(held.b, "data", numbers(1)),
        lambda held: held.double(),
    ],
)
def test_a_parameter_or_buffer_of_another_layout_is_told(inner, change: Callable[[Any], Any]):
    graph = torch.fx.symbolic_trace(Held())
    compiled = compile_graph(graph, [numbers(2, 3)], inner=inner)
    assert_same(compiled(numbers(2, 3)), graph(numbers(2, 3)))
    graph.p.data = numbers(2, 3) - 4  # other values are no other layout
    assert_same(compiled(numbers(2, 3)), graph(numbers(2, 3)))
    change(graph)
    with pytest.raises(UsageError, match=r"`[pb]` has torch.float(32|64) \[.* instead of torch.float32 \["):
        compiled(numbers(2, 3))


@every_inner
def test_sizes_that_are_symbols_may_be_others(inner):
    graph = make_fx(lambda x, y: x * 2 - y.sum(), tracing_mode="symbolic")(numbers(4), numbers(3))
    inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    compiled = compile_graph(graph, inputs, inner=inner)
    for size in (4, 6, 4, 9):
        assert torch.equal(compiled(numbers(size), numbers(size)), numbers(size) * 2 - numbers(size).sum())
    with pytest.raises(UsageError, match=r"argument 0 .* has the dtype torch.float64"):
        compiled(numbers(4).double(), numbers(4))


@every_inner
def test_other_modes_are_compiled_for_once_more(inner, device):
    # Powers of two: a product is exact, whether it is rounded before the difference or not.
    graph, x = torch.fx.symbolic_trace(Held().to(device)), torch.tensor([[1.0, 2, 4], [8, 0.5, 0.25]], device=device)
    compiled = compile_graph(graph, [x], inner=inner)

    def called(function: Callable[..., torch.Tensor]) -> list[Any]:
        with_gradient = function(x)
        gradient = torch.autograd.grad(with_gradient.sum(), graph.p)
        with torch.no_grad():
            without = function(x)
        with torch.inference_mode():
            inference = function(x)
        return [with_gradient, gradient, without, without.requires_grad, inference, inference.is_inference()]

    for _ in range(3):
        assert_same(called(compiled), called(graph))


def test_autocast_is_compiled_for():
    graph = torch.fx.symbolic_trace(lambda x, w: x @ w - 1)
    compiled = compile_graph(graph, [numbers(3, 3), numbers(3, 3)], inner="aten")
    for _ in range(2):
        assert compiled(numbers(3, 3), numbers(3, 3)).dtype is torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert_same(compiled(numbers(3, 3), numbers(3, 3)), graph(numbers(3, 3), numbers(3, 3)))
            assert compiled(numbers(3, 3), numbers(3, 3)).dtype is torch.bfloat16


def test_a_program_that_dynamo_captures_may_call_it(fresh_dynamo, recwarn):
    compiled = compile_graph(torch.fx.symbolic_trace(lambda x: x * 2 - x.sum()), [numbers(3)], inner="aten")
    captured = torch.compile(lambda x: compiled(x + 1) - x, backend="eager")
    assert torch.equal(captured(numbers(3)), compiled(numbers(3) + 1) - numbers(3))
    assert not [str(warning.message) for warning in recwarn if "Dynamo" in str(warning.message)]
