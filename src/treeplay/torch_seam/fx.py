"""What `torch.fx` keeps about a graph and its nodes without a public name."""

from __future__ import annotations

import contextlib
import keyword
import operator
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import torch.fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.graph import CodeGen, _PyTreeCodeGen
from torch.fx.traceback import get_current_meta, has_preserved_node_meta

from treeplay.torch_seam.operators import OpOverload


def exporter_trees(graph: torch.fx.Graph) -> tuple[Any, Any] | None:
    """The trees of inputs and of the result that an exporter left in a graph's code generator, if one did."""
    codegen = graph._codegen
    if not isinstance(codegen, _PyTreeCodeGen):
        return None
    return codegen.pytree_info.in_spec, codegen.pytree_info.out_spec


def graph_in_trace() -> torch.fx.Graph | None:
    """The graph that a trace writes at this moment, if one does."""
    mode = get_proxy_mode()
    return None if mode is None else mode.tracer.graph


def kept_now() -> frozenset[Any]:
    """The operators, and other functions, whose calls are no dead code."""
    return frozenset(torch.fx.node._side_effectful_functions)


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


def draws_kept() -> contextlib.AbstractContextManager[Any]:
    """While this lasts, calls that draw random numbers are no dead code: where torch traces for its compiler, it asks what
    that draws."""
    from torch._inductor import config  # only where something is compiled

    kept: contextlib.AbstractContextManager[Any] = config.patch(fallback_random=True)
    return kept


def lazy_module(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """A module of a graph that is read and taken apart: its code is generated if it is called, which some graphs' cannot be."""
    return _LazyGraphModule(root, graph)


def name_by_functions(graph: torch.fx.Graph) -> None:
    """Call operators by functions of another name where torch's own is no Python, as `aten.random.from`."""
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and keyword.iskeyword(node.target._overloadname):
            node.target = _function_of(node.target)


def _function_of(op: OpOverload) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    call.__name__ = call.__qualname__ = op.name().replace("::", "_").replace(".", "_")
    return call


# Compiled as views, though their schemas do not say so.
_VIEWS = frozenset(getattr(torch.ops.aten, name).default for name in ("_unsafe_view", "reshape", "_reshape_alias"))


def is_view(node: Any) -> bool:
    """Whether a node gives a view of its first argument, or one of several views of that."""
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return node.target in _VIEWS or (isinstance(node.target, OpOverload) and node.target.is_view)


def views_as_reshapes(graph: torch.fx.Graph) -> None:
    """Write the views of a functional graph, to which nothing writes, as reshapes: these copy where no view is possible."""
    for target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
        for node in graph.find_nodes(op="call_function", target=target):
            node.target = torch.ops.aten.reshape.default


def base_node(node: torch.fx.Node) -> torch.fx.Node:
    """The node in whose memory the value of `node` lies."""
    while is_view(node) and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def drop_exporter_trees(graph: torch.fx.Graph) -> None:
    """Make a graph's function take and return what its nodes do."""
    graph.set_codegen(CodeGen())


def stack_of_current_node() -> str | None:
    """Where the user wrote the node that is being run, where a graph with noted lines is run node by node."""
    return get_current_meta().get("stack_trace") if has_preserved_node_meta() else None
