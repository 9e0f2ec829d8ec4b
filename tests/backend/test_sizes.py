"""Graphs with symbolic sizes are compiled for the sizes of a call."""

from __future__ import annotations

import pytest
import torch

from treeplay.backend.inner import boxed
from treeplay.settings import settings
from treeplay.torch_compile import backend


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, module, inputs):
        self.calls += 1
        return boxed(module)


def test_each_size_is_compiled_once():
    inner = Counting()
    run = torch.compile(lambda x: x.sin() * x.shape[0], backend=backend, options={"inner": inner}, dynamic=True)
    for rows in (3, 5, 3, 5, 7):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(run(x), x.sin() * rows)
    assert inner.calls == 3


def test_only_the_newest_are_kept():
    inner = Counting()
    run = torch.compile(lambda x: x.sin() * x.shape[0], backend=backend, options={"inner": inner}, dynamic=True)
    with settings.changed(max_recordings_per_program=2):
        for rows in (3, 5, 7, 3):
            run(torch.randn(rows, 2))
    assert inner.calls == 4


def test_sizes_with_gradients():
    w = torch.randn(4, 2, requires_grad=True)
    run = torch.compile(lambda x, w: (x @ w).tanh(), backend=backend, options={"inner": "aten"}, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        (mine,) = torch.autograd.grad(run(x, w).sum(), w)
        (wanted,) = torch.autograd.grad((x @ w).tanh().sum(), w)
        torch.testing.assert_close(mine, wanted)
