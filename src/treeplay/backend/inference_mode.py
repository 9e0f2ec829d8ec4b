"""Inference mode that a graph enters itself: the graph is compiled without it, and its results are of the mode all the same. A
graph that leaves the mode around the call runs as it is there.

    enter_inference_mode(True)        set_grad_enabled(False)       with inference_mode():      where all results were
    ...                         ─▶    ...                     ─▶        compiled(*args)         made inside
    exit_inference_mode               set_grad_enabled(True)

torch's tracing cannot take these nodes: a view of what was made outside raises between enter and exit, and no operator of the
thread works after that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.fx

from treeplay.backend.options import Options
from treeplay.backend.shapes.flat import Program
from treeplay.backend.wrapped import unwrapped
from treeplay.codegen import hide_from_dynamo
from treeplay.observe.lines import location_in
from treeplay.torch_seam.flags import ENTER_INFERENCE, EXIT_INFERENCE, set_grad_enabled
from treeplay.values.refusal import Reason


def leave_inference_mode(program: Program, *, is_grad_enabled: bool) -> bool:
    """Replace the nodes that enter and exit inference mode by those that set the grad mode; gives whether all tensors of the
    results are made inside."""
    if not isinstance(program, torch.fx.GraphModule):
        return False
    graph = program.graph
    is_grad, outer, inside, is_inside = is_grad_enabled, [], set(), False
    for node in list(graph.nodes):
        if node.target is set_grad_enabled:
            is_grad = node.args[0]
        elif node.target is ENTER_INFERENCE:
            outer.append((is_grad, is_inside))
            is_inside = bool(node.args[0])
            is_grad = not is_inside
            _set_grad(graph, node, is_grad)
        elif node.target is EXIT_INFERENCE:
            is_grad, is_inside = outer.pop()
            _set_grad(graph, node, is_grad)
            graph.erase_node(node)
        elif is_inside:
            inside.add(node)
    for node in list(graph.nodes):  # only now: each is an argument of the node that exits
        if node.target is ENTER_INFERENCE:
            graph.erase_node(node)
    program.recompile()
    results = [node for node in graph.output_node().all_input_nodes if node.op != "placeholder"]
    return bool(inside) and all(node in inside for node in results)


def following_inference_mode(compiled: Callable[..., Any], program: Program, options: Options) -> Callable[..., Any]:
    """`compiled`; under inference mode `program` as it is, if it is a graph that leaves the mode. Only the call tells: Dynamo
    compiles outside of the mode."""
    left = _after_leaving(program.graph) if isinstance(program, torch.fx.GraphModule) else ()
    if not left:
        return compiled
    # Dynamo notes none at modes.
    where = next((location_in(node.stack_trace) for node in left if node.stack_trace), None)
    why = "the graph leaves the inference mode that is around the call"
    reason = Reason("inference_mode", why, "call it under torch.no_grad()", where)
    as_it_is = functools.cache(lambda: unwrapped(program, options, reason))  # which warns

    def call(*args: Any) -> Any:
        return (as_it_is() if torch.is_inference_mode_enabled() else compiled)(*args)

    return _in_place_of(compiled, call)


def _after_leaving(graph: torch.fx.Graph) -> Sequence[torch.fx.Node]:
    """The nodes from that on which leaves inference mode, whether the graph has entered it itself or not: also under the mode,
    what is made behind it is none of the mode's. None if the graph never leaves it."""
    nodes = list(graph.nodes)
    leaving = (at for at, node in enumerate(nodes) if node.target is ENTER_INFERENCE and not node.args[0])
    return nodes[next(leaving, len(nodes)) :]


def _set_grad(graph: torch.fx.Graph, before: torch.fx.Node, is_grad: bool) -> None:
    with graph.inserting_before(before):
        graph.call_function(set_grad_enabled, (is_grad,))


def in_inference_mode(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """What new tensors `compiled` makes are of inference mode."""

    def call(*args: Any) -> Any:
        with torch.inference_mode():
            return compiled(*args)

    return _in_place_of(compiled, call)


def _in_place_of(compiled: Callable[..., Any], call: Any) -> Callable[..., Any]:
    """`call`, with what is kept on `compiled`, and as little seen by Dynamo."""
    hide_from_dynamo(call, with_callees=True)
    call.__dict__.update(vars(compiled))
    return cast("Callable[..., Any]", call)
