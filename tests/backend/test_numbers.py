"""A float argument that changes from call to call is a tensor that the graph reads, and its backward may need the number."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from treeplay.backend.numbers import tensors_for_numbers
from treeplay.torch_compile import backend

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def no_fallback() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="treeplay runs")
        yield


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: (x.sin() / n - n) * x,
        lambda x, n: (x * torch.tensor(int(n), device=x.device)).cos(),
    ],
    ids=["arithmetic", "whole number"],
)
def test_training_with_a_changing_number_stays_compiled(program: Callable[..., torch.Tensor], device: str) -> None:
    run = torch.compile(program, backend=backend, options={"inner": "aten"})
    for number in (2.5, 3.5, 4.25):
        ours, eager = (torch.arange(1.0, 4, device=device).requires_grad_() for _ in range(2))
        result, wanted = run(ours, number), program(eager, number)
        result.square().sum().backward()
        wanted.square().sum().backward()
        torch.testing.assert_close((result, ours.grad), (wanted, eager.grad))


def graph_of_a_number(dtype: torch.dtype) -> torch.fx.GraphModule:
    """x * (1 / n) - n of a vector and a number that is read from a tensor, and the number as a tensor."""
    mode, graph = FakeTensorMode(shape_env=ShapeEnv()), torch.fx.Graph()
    x, t = graph.placeholder("x"), graph.placeholder("t")
    read = graph.call_function(aten._local_scalar_dense.default, (t,))
    inverse = graph.call_function(operator.truediv, (1, read))
    scaled = graph.call_function(aten.mul.Tensor, (x, inverse))
    less = graph.call_function(aten.sub.Tensor, (scaled, read))
    alone = graph.call_function(aten.scalar_tensor.default, (read,), {"dtype": torch.float32})
    graph.output((less, alone))
    with mode:
        x.meta["val"], t.meta["val"] = torch.empty(3, dtype=dtype), torch.empty((), dtype=torch.float64)
        alone.meta["val"] = torch.empty(())
        scaled.meta["val"] = less.meta["val"] = torch.empty(3, dtype=dtype if dtype.is_floating_point else None)
    read.meta["val"] = mode.shape_env.create_unbacked_symfloat()
    inverse.meta["val"] = 1 / read.meta["val"]
    return torch.fx.GraphModule({}, graph)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int64])
def test_numbers_become_tensors_of_the_precision_that_eager_computes_in(dtype: torch.dtype) -> None:
    module = graph_of_a_number(dtype)
    x, t = torch.tensor([3, 7, 11], dtype=dtype), torch.tensor(0.3, dtype=torch.float64)
    wanted = x * (1 / 0.3) - 0.3, torch.tensor(0.3)
    tensors_for_numbers(module)
    assert not module.graph.find_nodes(op="call_function", target=aten._local_scalar_dense.default)
    torch.testing.assert_close(module(x, t), wanted, rtol=1e-3 if dtype is torch.float16 else 1e-7, atol=0)


def test_a_number_that_an_operator_takes_only_as_one_is_left() -> None:
    module = graph_of_a_number(torch.float32)
    read = module.graph.find_nodes(op="call_function", target=aten._local_scalar_dense.default)[0]
    output: Any = module.graph.output_node()
    with module.graph.inserting_before(output):
        full = module.graph.call_function(aten.full.default, ([3], read))
    output.args = ((*output.args[0], full),)
    tensors_for_numbers(module)
    assert module(torch.ones(3), torch.tensor(0.5, dtype=torch.float64))[2].tolist() == [0.5] * 3
