"""A float argument that changes from call to call is a tensor that the graph reads, and its backward may need the number."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.checkpoint import checkpoint

from support.compiled import Inner
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


@pytest.mark.parametrize(
    "module",
    [nn.LayerNorm(3), nn.BatchNorm1d(3), nn.GroupNorm(3, 3), nn.Dropout(0.5), nn.RReLU(), nn.Hardtanh(-0.5, 0.5)],
    ids=lambda module: type(module).__name__,
)
def test_a_number_whose_value_the_trace_asks_for_is_compiled_in(module: nn.Module) -> None:
    twin = copy.deepcopy(module)
    run = torch.compile(module, backend=backend, options={"inner": "aten"}, dynamic=True)
    for rows in (4, 5, 4):
        results = []
        for each in (run, twin):
            torch.manual_seed(rows)
            x = torch.randn(rows, 3, requires_grad=True)
            y = each(x)
            (y * x).sum().backward()
            results.append((y, x.grad, *module.buffers()))
        torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: x * (10 // n) - 1,
        lambda x, n: x * (n // 0.1) - 1,
        lambda x, n: x * (x.shape[0] // n) - 1,
        lambda x, n: x * (x.shape[0] // 0.1) - n,
    ],
    ids=["by a number", "a number", "a size by a number", "a size"],
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_floats_are_divided_as_python_does_it(program: Callable[..., torch.Tensor], dynamic: bool | None) -> None:
    run = torch.compile(program, backend=backend, options={"inner": "aten"}, dynamic=dynamic)
    for rows, number in ((2, 1.0), (3, 0.5), (3, 0.1), (4, 0.2), (3, -0.3)):
        x = torch.arange(float(rows), dtype=torch.float64)
        torch.testing.assert_close(run(x, number), program(x, number), rtol=0, atol=0)


def test_what_is_compiled_for_a_number_is_for_this_value_alone() -> None:
    inner = Inner()
    run = torch.compile(_normed, backend=backend, options={"inner": inner}, dynamic=True)
    for eps, scale in ((0.1, 2.0), (0.1, 3.0), (0.4, 3.0), (0.1, 4.0)):
        x = torch.randn(4, 3)
        torch.testing.assert_close(run(x, eps, scale), _normed(x, eps, scale))
    assert len(inner.graphs) == 2  # and one for any scale, whose value nobody asked for


@pytest.mark.parametrize("depth", [1, 2])
def test_a_number_that_a_checkpoint_reads_is_compiled_in(depth: int) -> None:
    dropout = nn.Dropout(0.25)

    def program(x: torch.Tensor, depth: int = depth) -> torch.Tensor:
        within = program if depth > 1 else lambda x, depth: dropout(x * 3 - 1).sin()
        result: torch.Tensor = checkpoint(within, x, depth - 1, use_reentrant=False)
        return result + x

    run = torch.compile(program, backend=backend, options={"inner": "aten"}, dynamic=True)
    for rows, rate in ((4, 0.25), (5, 0.25), (4, 0.75), (4, 0.25)):
        dropout.p = rate
        results = []
        for each in (run, program):
            torch.manual_seed(rows)
            x = torch.arange(rows * 3.0).reshape(rows, 3).requires_grad_()
            y = each(x)
            torch.rand(2)
            (y * x).sum().backward()
            results.append((y, x.grad, torch.rand(2)))
        torch.testing.assert_close(*results)


def test_a_number_that_a_checkpoint_computes_with_is_compiled_once() -> None:
    inner = Inner()

    def program(x: torch.Tensor, scale: float) -> torch.Tensor:
        result: torch.Tensor = checkpoint(lambda x: (x * scale).sin() - scale, x, use_reentrant=False)
        return result

    run = torch.compile(program, backend=backend, options={"inner": inner}, dynamic=True)
    for scale in (2.0, 3.0, 0.5):
        x = torch.randn(4, 3)
        torch.testing.assert_close(run(x, scale), program(x, scale))
    assert len(inner.graphs) == 1


def test_what_is_compiled_for_another_pattern_of_memory_has_the_number_too() -> None:
    run = torch.compile(_written, backend=backend, options={"inner": "aten"}, dynamic=True)
    for eps, scale in ((0.1, 2.0), (0.4, 3.0), (0.1, 4.0)):
        for is_apart in (True, False):
            one, other = torch.randn(3, 3), torch.randn(3, 3)
            results = []
            for program in (run, _written):
                x = one.clone()
                y = other.clone() if is_apart else x
                results.append((program(x[:2], y[1:], eps, scale), x, y))
            torch.testing.assert_close(*results)


def _normed(x: torch.Tensor, eps: float, scale: float) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (3,), eps=1 - eps) * scale - x


def _written(x: torch.Tensor, y: torch.Tensor, eps: float, scale: float) -> torch.Tensor:
    y.sub_(1)
    return _normed(x, eps, scale) * 2


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
        least = module.graph.call_function(aten.clamp.default, (output.args[0][1], read))
    output.args = ((*output.args[0], least),)
    tensors_for_numbers(module)
    assert module.graph.find_nodes(op="call_function", target=aten._local_scalar_dense.default)
    assert module(torch.ones(3), torch.tensor(0.5, dtype=torch.float64))[2].item() == 0.5


def both(results: Any) -> tuple[Any, Any]:
    return results[0], results[1]


SCALED: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, z, n: aten.add.Tensor(x, y, alpha=n),
    "sub": lambda x, y, z, n: aten.sub.Tensor(x, y, alpha=n),
    "addcdiv": lambda x, y, z, n: aten.addcdiv.default(x, y, z, value=n),
    "addcmul": lambda x, y, z, n: aten.addcmul.default(x, y, z, value=n),
    "lerp": lambda x, y, z, n: aten.lerp.Scalar(x, y, n),
    "power of a number": lambda x, y, z, n: aten.pow.Scalar(n, x),
    "power": lambda x, y, z, n: aten.pow.Tensor_Scalar(x, n),
    "filled": lambda x, y, z, n: x - aten.full.default([3], n, dtype=torch.float32),
    "all added": lambda x, y, z, n: both(aten._foreach_add.List([x, z], [y, x], alpha=n)),
    "all subtracted": lambda x, y, z, n: both(aten._foreach_sub.List([x, z], [y, x], alpha=n)),
    "added to all": lambda x, y, z, n: both(aten._foreach_add.Scalar([x, y], n)),
    "all scaled": lambda x, y, z, n: both(aten._foreach_mul.Scalar([x, y], n)),
    "all divided": lambda x, y, z, n: both(aten._foreach_div.Scalar([x, y], n)),
    "all addcdiv": lambda x, y, z, n: both(aten._foreach_addcdiv.Scalar([x, y], [y, z], [z, x], n)),
    "all addcmul": lambda x, y, z, n: both(aten._foreach_addcmul.Scalar([x, y], [y, z], [z, x], n)),
    "all lerp": lambda x, y, z, n: both(aten._foreach_lerp.Scalar([x, y], [y, z], n)),
    "all clamped from below": lambda x, y, z, n: both(aten._foreach_clamp_min.Scalar([x, y], n)),
    "all clamped from above": lambda x, y, z, n: both(aten._foreach_clamp_max.Scalar([x, y], n)),
    "maximum of all": lambda x, y, z, n: both(aten._foreach_maximum.Scalar([x, y], n)),
    "minimum of all": lambda x, y, z, n: both(aten._foreach_minimum.Scalar([x, y], n)),
    "powers of a number": lambda x, y, z, n: both(aten._foreach_pow.ScalarAndTensor(n, [x, y])),
}


class FakeValues(torch.fx.Interpreter):
    """Notes what each node gives, without data; a number that is read is a symbol."""

    def run_node(self, node: torch.fx.Node) -> Any:
        if node.target is not aten._local_scalar_dense.default:
            node.meta["val"] = super().run_node(node)
            return node.meta["val"]
        node.meta["val"] = node.args[0].meta["val"].fake_mode.shape_env.create_unbacked_symfloat()  # type: ignore[union-attr]
        return 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SCALED)
def test_operators_that_optimizers_scale_by_a_number_take_a_tensor(name: str, dtype: torch.dtype) -> None:
    program, tensors = SCALED[name], [torch.tensor([1.5, 2.0, 4.5], dtype=dtype) - k for k in range(3)]
    number = torch.tensor(0.25, dtype=torch.float64)
    module = torch.fx.symbolic_trace(lambda x, y, z, t: program(x, y, z, aten._local_scalar_dense.default(t)))
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        FakeValues(module).run(*(mode.from_tensor(tensor, static_shapes=True) for tensor in (*tensors, number)))
    tensors_for_numbers(module)
    assert not module.graph.find_nodes(op="call_function", target=aten._local_scalar_dense.default)
    for wanted in (0.25, 0.75):
        given = torch.tensor(wanted, dtype=torch.float64)
        torch.testing.assert_close(module(*tensors, given), program(*tensors, wanted), rtol=1e-2, atol=1e-2)


@pytest.mark.compile
def test_a_step_whose_rate_and_momentum_follow_a_schedule_is_compiled_once(device: str) -> None:
    def make() -> tuple[Any, Any, Any]:
        weight = torch.nn.Parameter(torch.arange(6.0, device=device).reshape(2, 3))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, foreach=True)
        return weight, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=8)

    torch._dynamo.reset()
    (ours, optimizer, schedule), (wanted, eager, same_schedule) = make(), make()
    step = torch.compile(lambda: optimizer.step(), backend=backend)
    for call in range(5):
        ours.grad, wanted.grad = (torch.full((2, 3), 1.0 + call, device=device) for _ in range(2))
        step()
        eager.step()
        schedule.step()
        same_schedule.step()
        torch.testing.assert_close(ours, wanted)


def test_a_number_and_a_size_that_have_changed_and_are_differentiated() -> None:
    """A backward whose layouts were other ones than the trace's was run once more on tensors without data."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 1.5

        def forward(self, x: torch.Tensor, y: Any = None) -> Any:
            scaled = x.sigmoid() * self.scale
            return scaled.relu().unbind(0)[0], scaled.roll(1, 0)

    torch._dynamo.reset()
    module = Scaled()
    compiled = torch.compile(module, backend=backend, options={"inner": "aten"})
    compiled(torch.randn(4, 2).t())
    module.scale = 1.75
    compiled(torch.randn(3, 4))
    x = torch.randn(4, 3).t().requires_grad_()
    twin = x.detach().clone().requires_grad_()
    for program, leaf in ((compiled, x), (module, twin)):
        first, second = program(leaf, torch.randn(3, 4))
        (first.sum() * 2 - second.sum()).backward()
    torch.testing.assert_close(x.grad, twin.grad)
