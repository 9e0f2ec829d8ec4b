"""Models that need more than a graph run compiled, without a warning, and do what they do in eager mode."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from treeplay.backend.compile import backend
from treeplay.backend.inner import boxed
from wrap.aot.oracle import numbers, same
from wrap.aot.pairs import Pair, pair


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="treeplay runs")
        yield
    torch._dynamo.reset()


class Inner:
    """An inner compiler that runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, module: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graphs.append(module)
        return boxed(module)


def train(program: Callable[..., Any], net: nn.Module, batches: list[torch.Tensor]) -> list[Any]:
    """Losses of a few steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = program(batch).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def agree(net: nn.Module, batches: list[torch.Tensor], **options: Any) -> Inner:
    """Train a model compiled and a copy of it in eager mode, and compare all that remains."""
    inner, twin = Inner(), copy.deepcopy(net)
    torch.manual_seed(5)
    wanted = train(twin, twin, batches)
    torch.manual_seed(5)
    run = torch.compile(net, backend=backend, options={"inner": options.pop("inner", inner)}, **options)
    found = train(run, net, batches)
    for k, (left, right) in enumerate(zip(wanted, found, strict=True)):
        same(f"loss {k}", left, right)
    for (name, left), (_, right) in zip(twin.state_dict().items(), net.state_dict().items(), strict=True):
        same(name, left, right)
    return inner


class Paired(nn.Module):
    """Two layers whose weights are made of two tensors each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(pair(3, 4) / 5)
        self.second = nn.Parameter(pair(4, 2) / 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.first) @ self.second


def batches(*size: int, count: int = 3) -> list[torch.Tensor]:
    return [numbers(*size) / 3 + k for k in range(count)]


def test_W15_a_model_with_parameters_made_of_tensors_trains() -> None:
    net = Paired()
    inner = agree(net, batches(5, 3))
    assert len(inner.graphs) == 2 and isinstance(net.first.grad, Pair)


def test_W15_the_same_with_inductor() -> None:
    agree(Paired(), batches(5, 3), inner="inductor")


def test_W15_a_model_with_parameters_made_of_tensors_in_inference() -> None:
    net, inner = Paired(), Inner()
    run = torch.compile(net, backend=backend, options={"inner": inner})
    with torch.no_grad():
        for batch in batches(5, 3):
            same("result", net(batch), run(batch))
    assert len(inner.graphs) == 1
