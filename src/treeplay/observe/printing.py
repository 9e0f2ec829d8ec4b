"""Graphs as text that is made only if somebody reads it: a logger that is off formats nothing."""

from __future__ import annotations

from collections import UserString
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.fx import Graph, GraphModule, Node

from treeplay.errors import ArgumentTypeError
from treeplay.torch_seam.operators import OperatorBase

_HEADER = ("kind", "name", "target", "args", "kwargs")


class LazyText(UserString):
    """A text that is made when it is first used, and then kept. It can do what a string can."""

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make  # the base class would want the text itself

    def __getattr__(self, name: str) -> Any:
        # All methods of the base class read `data`; this runs only while there is none.
        if name != "data":
            raise AttributeError(name)
        self.data = self._make()
        return self.data


def tabular(gm: GraphModule | Graph) -> LazyText:
    """The graph as a table, one row per node: kind, name, target, args, kwargs; formatted when first used.

    Raises `ArgumentTypeError` if `gm` is neither a graph module nor a graph.
    """
    if not isinstance(gm, (GraphModule, Graph)):
        raise ArgumentTypeError(f"a table is of a GraphModule or Graph, got {type(gm).__name__}")
    graph = gm.graph if isinstance(gm, GraphModule) else gm
    return LazyText(lambda: _table(_row(node) for node in graph.nodes))


def code(gm: GraphModule, *, strides: bool = True, devices: bool = True, colored: bool = False) -> LazyText:
    """The graph as Python code with dtypes and shapes where known; formatted when first used.

    Strides and devices stand beside the shapes unless turned off, escape codes for colour only if asked for.
    Raises `ArgumentTypeError` if `gm` is no graph module.
    """
    if not isinstance(gm, GraphModule):
        raise ArgumentTypeError(f"code is of a GraphModule, got {type(gm).__name__}")
    return LazyText(lambda: _code_text(gm, strides, devices, colored))


def _code_text(gm: GraphModule, strides: bool, devices: bool, colored: bool) -> str:
    return gm.print_readable(print_output=False, include_stride=strides, include_device=devices, colored=colored)


def _row(node: Node) -> tuple[str, ...]:
    return node.op, node.name, _target(node.target), str(node.args), str(node.kwargs)


def _target(target: object) -> str:
    if isinstance(target, (str, OperatorBase)):
        return str(target)
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    module = getattr(target, "__module__", None)
    return str(target) if name is None else f"{module}.{name}" if module else name


def _table(rows: Iterable[Sequence[str]]) -> str:
    cells = [_HEADER, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
