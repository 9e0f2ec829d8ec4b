"""Graphs with symbolic sizes are compiled for the sizes of a call."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from support.compiled import Inner
from treeplay.backend.options import Options
from treeplay.driver import compile_captured
from treeplay.observe import counters
from treeplay.settings import settings
from treeplay.torch_compile import backend
from treeplay.torch_seam.dynamo import _mark_of_changing_sizes


def test_each_size_is_compiled_once():
    inner = Inner()
    run = torch.compile(lambda x: x.sin() * x.shape[0], backend=backend, options={"inner": inner}, dynamic=True)
    for rows in (3, 5, 3, 5, 7):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(run(x), x.sin() * rows)
    assert len(inner.graphs) == 3


def test_only_the_newest_are_kept():
    inner = Inner()
    run = torch.compile(lambda x: x.sin() * x.shape[0], backend=backend, options={"inner": inner}, dynamic=True)
    with settings.changed(max_recordings_per_program=2):
        for rows in (3, 5, 7, 3):
            run(torch.randn(rows, 2))
    assert len(inner.graphs) == 4


def test_sizes_beyond_the_budget_run_as_they_are_and_are_told_once():
    inner = Inner()
    run = torch.compile(lambda x: x.sin() * x.shape[0], backend=backend, options={"inner": inner}, dynamic=True)
    with settings.changed(compile_budget=0.0), pytest.warns(UserWarning, match="compile_budget") as told:
        for rows in (3, 4, 5, 6, 7, 8, 7, 3):
            x = torch.randn(rows, 2)
            torch.testing.assert_close(run(x), x.sin() * rows)
    assert len(inner.graphs) == 4 and counters["sizes"]["over the compile budget"] == 3 and len(told) == 1
    x = torch.randn(7, 2)
    torch.testing.assert_close(run(x), x.sin() * 7)  # once there is time again
    assert len(inner.graphs) == 5


def test_a_call_with_new_sizes_does_not_wait_for_another_threads_compile():
    begins, may_end = threading.Event(), threading.Event()
    inner = Inner()

    def slowly(module, inputs):
        begins.set()
        assert may_end.wait(30)
        return inner(module, inputs)

    run = torch.compile(lambda x: x.sin() * x.shape[0], backend=backend, options={"inner": slowly}, dynamic=True)
    x, y = torch.randn(3, 2), torch.randn(4, 2)
    may_end.set()
    run(x)
    may_end.clear()
    begins.clear()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(run, y)
        assert begins.wait(30)
        torch.testing.assert_close(run(y), y.sin() * 4)
        assert counters["sizes"]["another thread compiles"] == 1
        may_end.set()
        torch.testing.assert_close(other.result(), y.sin() * 4)


def test_sizes_with_gradients():
    w = torch.randn(4, 2, requires_grad=True)
    run = torch.compile(lambda x, w: (x @ w).tanh(), backend=backend, options={"inner": "aten"}, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        (mine,) = torch.autograd.grad(run(x, w).sum(), w)
        (wanted,) = torch.autograd.grad((x @ w).tanh().sum(), w)
        torch.testing.assert_close(mine, wanted)


def marks(tensor):
    return getattr(tensor, _mark_of_changing_sizes(), set())


def test_W28_sizes_that_change_are_noted_at_results(device):
    def program(x):
        return x * 2, x.sum(0), x.sum(), x[:2]

    run = torch.compile(program, backend=backend, options={"inner": "aten"}, dynamic=True)
    for rows, columns in ((3, 4), (5, 6), (5, 6)):
        assert [marks(result) for result in run(torch.randn(rows, columns, device=device))] == [{0, 1}, {0}, set(), {1}]


def test_W28_a_following_graph_keeps_them_dynamic(device):
    inner = Inner()

    def program(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y.sin() * y.size(0)

    run = torch.compile(program, backend=backend, options={"inner": inner})
    frames = []
    for rows in (3, 4, 5, 6, 7):
        x = torch.randn(rows, 2, device=device)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(run(x), program(x))
        frames.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert len(set(frames)) == 1, "a graph was captured again for another size"


def test_W28_known_sizes_are_not_noted():
    run = torch.compile(lambda x: x * 2, backend=backend, options={"inner": "aten"}, dynamic=False)
    assert marks(run(torch.randn(3, 4))) == set()


LOSSES = {
    "size": lambda y: y.sum() / y.size(0),
    "len": lambda y: (y**2).sum() / len(y),
    "shape": lambda y: (y**2).sum() * y.shape[0],
    "a root": lambda y: (y**2).sum() / y.size(0) ** 0.5,
    "a tensor of it": lambda y: y.sum() / torch.tensor(y.size(0)),
    "a tensor of it and another": lambda y: y.sum() / torch.tensor([y.size(0), 2.0]).sum(),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_that_knows_the_size_is_compiled_for_each(loss, recwarn):
    w = torch.randn(4, 2, requires_grad=True)
    run = torch.compile(lambda x, w: LOSSES[loss](x @ w), backend=backend, options={"inner": "aten"}, dynamic=True)
    for rows in (3, 5, 3):
        x = torch.randn(rows, 4)
        (mine,) = torch.autograd.grad(run(x, w), w)
        (wanted,) = torch.autograd.grad(LOSSES[loss](x @ w), w)
        torch.testing.assert_close(mine, wanted)
    assert not [str(item.message) for item in recwarn if "uncompiled" in str(item.message)]


def test_a_tensor_of_a_number_argument_is_compiled(recwarn):
    run = torch.compile(lambda x, n: x * torch.tensor(n), backend=backend, options={"inner": "aten"})
    for n in (2, 3, 5):
        torch.testing.assert_close(run(torch.ones(2), n), torch.full((2,), float(n)))
    assert not [str(item.message) for item in recwarn if "uncompiled" in str(item.message)]


def test_fakes_of_symbolic_sizes_run_as_they_are():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fake = mode.from_tensor(torch.ones(4, 3))
    run = compile_captured(torch.fx.symbolic_trace(lambda x: (x * 2 - 1,)), [fake], Options(inner="aten"))
    for rows in (4, 5):
        torch.testing.assert_close(run(torch.ones(rows, 3))[0], torch.ones(rows, 3))
    assert isinstance(run(fake)[0], FakeTensor)
