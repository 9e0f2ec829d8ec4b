"""Is a graph one from which right code can be written? Asked wherever one stage hands a graph to the next.

    jit             trace ─ check ▶ no reshapes in place ─ check ▶ lists apart ─ check ▶ functional ─ check ▶ layouts
                    ─ check ▶ Inductor
    torch.compile   flat inputs and results ─ check ▶ passes ─ check ▶ trace ─ check ▶ writes of the backward ─ check ▶ passes
                    ─ check ▶ split ─ check ▶ no saved views ─ check ▶ passes ─ check ▶ compiler

A graph runs as a Python function of its placeholders. That function names an argument by the placeholder's *target* and every
other value by its node's *name*. Torch keeps the names of nodes apart, and nobody the targets: where a target is another
node's name, an argument is overwritten before it is read, and results are wrong without a word.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from treeplay.errors import InternalError


def add_placeholder(graph: torch.fx.Graph, name: str) -> torch.fx.Node:
    """A new placeholder, called `name` if nothing else is. Its target is what it is called in the end."""
    node = graph.placeholder(name)
    node.target = node.name
    return node


def add_like(graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], like: torch.fx.Node) -> torch.fx.Node:
    """A call that gives a value like that of another node, in memory of its own: of one storage, the two would count as one
    memory."""
    made = graph.call_function(target, args)
    made.meta.update(like.meta)
    made.meta["val"] = torch.empty_like(like.meta["val"])
    return made


def check_graph(graph: torch.fx.Graph, after: str) -> None:
    """Raise `InternalError` if a graph, as it is after this stage, is not well formed."""
    fault = next(_faults(graph), None)
    if fault is not None:
        raise InternalError(f"the graph is not well formed after {after}: {fault}")


def check_module(module: torch.fx.GraphModule, after: str) -> None:
    """The same for the graph of a module, and for the graphs of its children, which are bodies of branches and loops."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            check_graph(part.graph, after)


def _faults(graph: torch.fx.Graph) -> Iterator[str]:
    """What is wrong with the graph, in the order of its nodes."""
    owner: dict[str, torch.fx.Node] = {}  # of each variable of the function
    done: set[torch.fx.Node] = set()
    takes_more, has_ended = True, False
    for node in graph.nodes:
        if has_ended:
            yield f"{node} comes after the results"
        if node.op == "placeholder":
            if not takes_more and node.target != "tangents_token":  # which torch takes once it has traced the backward
                yield f"the argument {node} comes after something computed"
        elif node.op != "get_attr":
            takes_more = False
        for name in _variables(node):
            if owner.setdefault(name, node) is not node:
                yield f"{name} is defined twice, by {owner[name].format_node()} and by {node.format_node()}"
            if not name.isidentifier() or keyword.iskeyword(name):
                yield f"{name!r} cannot be a name"
        for source in node.all_input_nodes:
            if source not in done:
                yield f"{node} reads {source} before it is computed"
        done.add(node)
        has_ended = node.op == "output"
    if not has_ended:
        yield "it has no results"


def _variables(node: torch.fx.Node) -> Iterator[str]:
    """The variables that the function assigns for a node."""
    yield node.name
    if node.op == "placeholder":
        yield str(node.target).lstrip("*")
