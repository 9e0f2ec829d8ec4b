"""What torch.compile does around graphs works with treeplay behind it: breaks, modes, hooks, autocast, resets, processes."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.compiled import BOTH, INDUCTOR_IN_SOAK, compiled, small_net
from treeplay.backend.account import graph_reports
from treeplay.backend.inner import boxed
from treeplay.torch_compile import backend


def inputs(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check_training(net, inner, *, make=lambda seed: inputs(seed, 3, 4), steps=4, **keywords):
    """Train a module and its twin and compare results, gradients, parameters and buffers after each step."""
    twin = copy.deepcopy(net)
    run = compiled(net, inner, **keywords)
    mine, wanted = (torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9) for module in (net, twin))
    for seed in range(steps):
        results = []
        for program, optimizer in ((run, mine), (twin, wanted)):
            optimizer.zero_grad()
            out = program(make(seed))
            out.square().mean().backward()
            optimizer.step()
            results.append(out.detach())
        torch.testing.assert_close(*results)
        for one, other in zip(net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
            torch.testing.assert_close(one, other)
        for one, other in zip(net.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(one, other)


class Broken(nn.Module):
    """Two graph breaks, one of them data-dependent."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = self.first(x).sin()
        torch._dynamo.graph_break()
        x = x * 3 if x.sum().item() > 0 else x - 5
        return self.second(x)


@INDUCTOR_IN_SOAK  # inference has the same breaks
def test_graph_breaks_make_several_graphs_of_a_frame(inner):
    torch.manual_seed(2)
    net = Broken()
    check_training(net, inner)
    ids = {report.graph_id for report in graph_reports()}
    assert len(ids) >= 3


@BOTH
def test_inference_over_graph_breaks(inner):
    net = Broken().eval()
    run = compiled(net, inner)
    with torch.no_grad():
        for seed in range(5):
            torch.testing.assert_close(run(inputs(seed, 3, 4)), net(inputs(seed, 3, 4)))


def test_a_full_graph_that_breaks_raises():
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(Broken(), fullgraph=True)(inputs(0, 3, 4))


@BOTH
def test_a_full_graph_trains(inner):
    check_training(small_net(), inner, fullgraph=True)


@INDUCTOR_IN_SOAK  # test_strides.py has such a net
def test_normalisation_and_convolution_train(inner):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3))
    check_training(net, inner, make=lambda seed: inputs(seed, 5, 2, 8))


def test_a_reset_compiles_anew():
    compiles = []

    def inner(module, inputs):
        compiles.append(module)
        return boxed(module)

    def program(x):
        return x * 2 + 1

    run = compiled(program, inner)
    for expected in (1, 2):
        for _ in range(2):
            assert run(torch.ones(2)).tolist() == [3, 3]
        assert len(compiles) == expected
        torch.compiler.reset()


@BOTH
def test_grad_mode_switches_between_calls(inner):
    net, x = small_net(), inputs(0, 3, 4)
    run = compiled(net, inner)
    wanted = net(x).detach()
    for _ in range(2):
        with torch.no_grad():
            out = run(x)
        assert not out.requires_grad
        torch.testing.assert_close(out, wanted)
        out = run(x)
        assert out.requires_grad
        torch.testing.assert_close(out.detach(), wanted)
        with torch.inference_mode():
            torch.testing.assert_close(run(x), wanted)


@BOTH
def test_grad_mode_switches_inside_of_a_graph(inner):
    def program(x, w):
        y = x @ w
        with torch.no_grad():
            scale = y.abs().sum()
        with torch.enable_grad():
            return y * scale + y.detach().sin()

    x, w = inputs(0, 3, 4), inputs(1, 4, 2).requires_grad_()
    (mine,) = torch.autograd.grad(compiled(program, inner)(x, w).sum(), w)
    (wanted,) = torch.autograd.grad(program(x, w).sum(), w)
    torch.testing.assert_close(mine, wanted)


@BOTH
def test_autocast_outside_and_inside(inner):
    net, x = small_net(), inputs(0, 3, 4)

    def inside(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = net(x)
        return y.float() * 3

    run_outside, run_inside = compiled(net, inner), compiled(inside, inner)
    with torch.autocast("cpu", torch.bfloat16):
        mine, wanted = run_outside(x), net(x)
        assert mine.dtype == wanted.dtype == torch.bfloat16
        mine.float().sum().backward()
    grads = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        net(x).float().sum().backward()
    for one, parameter in zip(grads, net.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=5e-2, atol=5e-2)
    torch.testing.assert_close(mine, wanted, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(run_inside(x), inside(x), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(run_outside(x), net(x))  # and without it again


@INDUCTOR_IN_SOAK
def test_hooks_of_modules_and_of_tensors(inner):
    net, twin = small_net(), small_net()
    seen = {"mine": [], "wanted": []}
    for module, name in ((net, "mine"), (twin, "wanted")):
        module[0].register_forward_hook(lambda module, args, out: out * 3)
        module[2].register_forward_pre_hook(lambda module, args: (args[0] + 5,))
        module[0].weight.register_hook(lambda grad, name=name: seen[name].append(grad.clone()) or grad * 7)
    x = inputs(0, 3, 4)
    mine, wanted = compiled(net, inner)(x), twin(x)
    torch.testing.assert_close(mine, wanted)
    mine.sum().backward()
    wanted.sum().backward()
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert len(seen["mine"]) == 1
    torch.testing.assert_close(seen["mine"], seen["wanted"])


def test_full_backward_hooks():
    net, twin = small_net(), small_net()
    for module in (net, twin):
        module[1].register_full_backward_hook(lambda module, into, out: (into[0] * 5,))
    x = inputs(0, 3, 4)
    compiled(net)(x).sum().backward()
    twin(x).sum().backward()
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@BOTH
def test_saved_tensors_may_be_packed_by_the_user(inner):
    """What a hook gives back lies otherwise in memory than what was saved: the backward still computes with its values."""
    x, w = inputs(0, 3, 4).t().contiguous().t(), inputs(1, 4, 5).requires_grad_()

    def program(x, w):
        return ((x @ w).t() * 2).sin()

    (wanted,) = torch.autograd.grad(program(x, w).sum(), w)
    run = compiled(program, inner)
    torch.testing.assert_close(torch.autograd.grad(run(x, w).sum(), w)[0], wanted)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor, lambda tensor: tensor.t().contiguous().t() if tensor.dim() == 2 else tensor
    ):
        torch.testing.assert_close(torch.autograd.grad(run(x, w).sum(), w)[0], wanted)


@BOTH
def test_sizes_that_change_train(inner):
    net, twin = small_net(), small_net()
    run = compiled(net, inner, dynamic=True)
    for rows in (3, 5, 3):
        x = inputs(rows, rows, 4)
        run(x).square().sum().backward()
        twin(x).square().sum().backward()
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@BOTH
def test_a_branch_that_is_given_sizes_that_change_is_compiled(inner):
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2 - x, lambda x: x * 3 - 1, (x,))

    run = compiled(program, inner, dynamic=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="treeplay runs")
        for rows, scale in ((3, 1.0), (3, -1.0), (5, -1.0)):
            x = torch.full((rows, 4), scale)
            torch.testing.assert_close(run(x), x.sin() * 2 - x if scale > 0 else x * 3 - 1)


SCRIPT = """
import copy, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from treeplay.backend.account import graph_reports
from treeplay.torch_compile import backend

rank, port = int(sys.argv[1]), sys.argv[2]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
dist.init_process_group("gloo", rank=rank, world_size=2)
for inner in sys.argv[3:]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    twin = copy.deepcopy(net)
    known = len(graph_reports())
    ddp = torch.compile(DistributedDataParallel(net, bucket_cap_mb=0.0001), backend=backend, options={"inner": inner})
    plain = DistributedDataParallel(twin)
    mine, wanted = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (net, twin))
    for step in range(3):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        for program, optimizer in ((ddp, mine), (plain, wanted)):
            optimizer.zero_grad()
            program(x).square().mean().backward()
            optimizer.step()
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert any(report.direction == "backward" for report in graph_reports()[known:])
    torch.compiler.reset()
dist.destroy_process_group()
print("equal")
"""


@pytest.mark.compile
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_distributed_data_parallel_over_two_processes(tmp_path):
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = tmp_path / "worker.py"
    script.write_text(SCRIPT)
    source = str(Path(sys.modules[backend.__module__].__file__).parents[1])
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), str(rank), port, "aten", "inductor"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=200)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert all("equal" in output for output in outputs), "\n".join(outputs)


def test_a_gradient_penalty_through_the_backend_is_eagers() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Dropout(0.4), torch.nn.Linear(5, 1))
    compiled = torch.compile(net, backend="treeplay", options={"inner": "aten"})
    x = torch.randn(4, 3, requires_grad=True)
    gradients = []
    for program in (net, compiled, compiled):
        torch.manual_seed(7)
        y = program(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        loss = y.mean() + (slope.norm(dim=1) - 1).pow(2).mean()
        gradients.append(torch.autograd.grad(loss, list(net.parameters())))
    for found in gradients[1:]:
        for one, other in zip(found, gradients[0], strict=True):
            torch.testing.assert_close(one, other)


class Scaled(torch.autograd.Function):
    """Changes its first argument in place and returns it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.clone(), w)
        ctx.mark_dirty(x)
        return x.mul_(w)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return gradient * w, gradient * x


def _dynamo_knows_dirty_arguments(device: str) -> bool:
    x = torch.ones(3, device=device, requires_grad=True) * 1.5
    result = torch.compile(lambda x, w: Scaled.apply(x, w), backend="eager")(x, torch.ones(3, device=device))
    return result is x


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
def test_an_argument_that_a_custom_function_changed_and_returned_is_the_result(grad: bool, device: str) -> None:
    if grad and not _dynamo_knows_dirty_arguments(device):
        pytest.skip("this release of Dynamo returns another tensor than the argument, with any backend")
    compiled = torch.compile(lambda x, w: Scaled.apply(x, w), backend="treeplay", options={"inner": "aten"})
    found = []
    for run in (Scaled.apply, compiled, compiled):
        leaf = torch.linspace(1.0, 2.0, 3, device=device, requires_grad=True)
        w = torch.tensor([2.0, -3.0, 4.0], device=device, requires_grad=True)
        with torch.set_grad_enabled(grad):
            x = leaf * 1.5
            version = x._version
            result = run(x, w)
            assert result is x and x._version > version and (x.grad_fn is not None) == grad
        gradients = torch.autograd.grad(result.sin().sum() + x.sum(), (leaf, w)) if grad else ()
        found.append([x.detach().clone(), *gradients])
    for ours in found[1:]:
        for one, other in zip(ours, found[0], strict=True):
            torch.testing.assert_close(one, other)


def test_a_custom_function_that_dynamo_took_apart_is_differentiated_once() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * ctx.saved_tensors[0] ** 2

    x = torch.ones(3, requires_grad=True)
    compiled = torch.compile(lambda x: Doubled.apply(x), backend="treeplay", options={"inner": "aten"})
    (slope,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    torch.testing.assert_close(slope.detach(), torch.ones(3))
    with pytest.raises(RuntimeError, match=r"differentiated twice: .*custom autograd function"):
        slope.sum().backward()


def test_a_backward_that_compiled_autograd_traced_may_be_compiled_here() -> None:
    """It calls a graph with a list of tensors, and Dynamo asks that graph for its own placeholders afterwards."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    ours = torch.compile(backend="treeplay", options={"inner": "aten"})
    for _ in range(2):
        x = torch.randn(4, 3)
        expected = torch.autograd.grad(net(x).pow(2).sum(), list(net.parameters()))
        net.zero_grad()
        with torch._dynamo.compiled_autograd._enable(ours):
            net(x).pow(2).sum().backward()
        for parameter, gradient in zip(net.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


def test_a_graph_with_quantized_tensors_runs_as_it_is():
    def run(x):
        q = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
        return q.dequantize() - 1, q.int_repr()

    x = torch.randn(3)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = compiled(run)(x)
    # Before torch 2.13, Dynamo breaks the graph there and hands over nothing.
    assert any("quantized" in str(item.message) for item in told) or torch.__version__ < "2.13"
    assert all(map(torch.equal, found, run(x)))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_graph_with_tensors_of_onednn_runs_as_it_is(dynamic):
    def run(x):
        return x.to_mkldnn().relu().to_dense() - 1

    x, ours = torch.randn(3, 4), torch.compile(run, backend="treeplay", options={"inner": "aten"}, dynamic=dynamic)
    with pytest.warns(UserWarning, match="of oneDNN's own layout"):
        found = ours(x)
    again = ours(x * 2)
    assert found.layout is again.layout is torch.strided
    assert torch.equal(found, run(x)) and torch.equal(again, run(x * 2))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
@pytest.mark.parametrize("inner", ["aten", "inductor"])
def test_a_result_of_onednns_layout_keeps_it(inner):
    def run(x, y):
        return (x.to_mkldnn() + y.to_mkldnn()).relu()

    given = torch.randn(3, 4), torch.randn(3, 4)
    found, wanted = compiled(run, inner=inner)(*given), run(*given)
    assert found.layout is wanted.layout and torch.equal(found.to_dense(), wanted.to_dense())


def test_a_loss_of_no_elements_runs_as_it_is_and_is_told_why():
    net = nn.Linear(3, 2)

    def loss(x, y):
        return nn.functional.mse_loss(net(x), y) / 2 - 1

    ours, x, y = compiled(loss), torch.randn(0, 3), torch.randn(0, 2)
    with pytest.warns(UserWarning, match="`mse_loss_backward` divides by a number of elements that is 0"):
        found = ours(x, y)
    (gradient,) = torch.autograd.grad(found, [net.weight])
    (expected,) = torch.autograd.grad(loss(x, y), [net.weight])
    assert found.isnan() and torch.equal(gradient, expected)


@pytest.mark.parametrize("name", ["bilinear", "pinv", "encoder"])
def test_autocast_casts_what_a_kernel_computes_with(name):
    bilinear, encoder = nn.Bilinear(6, 6, 5), nn.TransformerEncoderLayer(6, 2, 16, batch_first=True).eval()
    run = {
        "bilinear": lambda x: bilinear(x, x - 1) * 2,
        "pinv": lambda x: torch.linalg.pinv(x) * 2,
        "encoder": lambda x: encoder(x[None]) * 2,
    }[name]
    ours = compiled(run, inner="aten")
    is_refused = name == "encoder"
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            x = torch.randn(4, 6)
            found, wanted = ours(x), run(x)
            assert found.dtype is wanted.dtype and torch.equal(found, wanted)
    assert any("inside of its kernel" in str(one.message) for one in told) is is_refused


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_a_view_of_an_argument_may_get_a_history_where_it_was_taken_with_gradients_on(
    mode: Callable[[], Any], fresh_dynamo: None
) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with mode():
            return x[1:]

    for around in (torch.enable_grad, torch.no_grad):
        run = compiled(program, inner="aten")
        for _ in range(3):
            with around():
                view = run(torch.arange(4.0))
            with ExitStack() as stack:
                if mode is torch.no_grad:
                    stack.enter_context(pytest.raises(RuntimeError, match="no_grad"))
                view.mul_(torch.tensor(2.0, requires_grad=True))
