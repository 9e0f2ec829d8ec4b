"""What tests of the backend need: programs compiled by it, inner compilers that note their graphs, reports since a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from support.quick import seed
from treeplay.backend.account import GraphReport, graph_reports
from treeplay.backend.inner import boxed
from treeplay.torch_compile import backend


def compiled(
    program: Callable[..., Any],
    inner: Any = "aten",
    *,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    **options: Any,
) -> Any:
    """`program` through `torch.compile` and our backend: operators as they are, where nothing else is said."""
    given = {"inner": inner, **options}
    return torch.compile(program, backend=backend, options=given, dynamic=dynamic, fullgraph=fullgraph)


def small_net() -> nn.Sequential:
    """Two layers with the same weights each time."""
    seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


BOTH = pytest.mark.parametrize("inner", ["aten", "inductor"])
INDUCTOR_IN_SOAK = pytest.mark.parametrize("inner", ["aten", pytest.param("inductor", marks=pytest.mark.soak)])
"""Where another test has Inductor compile the like already."""


class Inner:
    """An inner compiler that runs graphs as they are, and keeps them."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, module: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graphs.append(module)
        return boxed(module)


class SeenOperators(TorchDispatchMode):
    """Notes each operator that runs in its block."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


_older: set[int] = set()  # graphs of earlier tests, which may be alive still


def forget_reports() -> None:
    """What is compiled from now on is new."""
    _older.update(report.graph_id for report in graph_reports())


def new_reports() -> list[GraphReport]:
    """Of the graphs that this test has compiled."""
    return [report for report in graph_reports() if report.graph_id not in _older]
