"""What `torch.fx` keeps about a graph and its nodes without a public name."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import torch
import torch.fx
from torch.fx.graph import CodeGen, _PyTreeCodeGen
from torch.fx.traceback import get_current_meta, has_preserved_node_meta


def exporter_trees(graph: torch.fx.Graph) -> tuple[Any, Any] | None:
    """The trees of inputs and of the result that an exporter left in a graph's code generator, if one did."""
    codegen = graph._codegen
    if not isinstance(codegen, _PyTreeCodeGen):
        return None
    return codegen.pytree_info.in_spec, codegen.pytree_info.out_spec


@contextlib.contextmanager
def kept_operators(operators: Collection[Any]) -> Iterator[None]:
    """While this lasts, calls of these operators are no dead code, though nobody uses what they give."""
    known: set[Any] = torch.fx.node._side_effectful_functions
    added = set(operators) - known
    known |= added
    try:
        yield
    finally:
        known -= added


def drop_exporter_trees(graph: torch.fx.Graph) -> None:
    """Make a graph's function take and return what its nodes do."""
    graph.set_codegen(CodeGen())


def stack_of_current_node() -> str | None:
    """Where the user wrote the node that is being run, where a graph with noted lines is run node by node."""
    return get_current_meta().get("stack_trace") if has_preserved_node_meta() else None
