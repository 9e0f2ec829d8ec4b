"""What each custom function's backward runs for: gradients of which results, for which inputs.

    y = Custom.apply(x * w)              Custom.backward runs if a gradient comes for y, and that of x or w is wanted:
    return y * v, v                      else eager does not draw what it draws

A node of autograd's graph is run as a whole, or not at all. What it calls need not depend on a gradient, as a draw does not, so
the graph that is traced does not tell. Autograd's own graph does, as long as it is there. It also tells which inputs
the results lead to at all: a backward that gives None for an input runs like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge

from treeplay.torch_seam.autograd import history
from treeplay.torch_seam.fx import graph_in_trace
from treeplay.torch_seam.partition import is_kept_in_backward

_RUNS_FOR = "runs_for"

LeadsTo = dict[tuple[int | None, int | None], frozenset[int]]
"""The inputs that autograd's graph leads to, by where it begins: at a written input or else at a result."""


@dataclass(frozen=True, slots=True)
class RunsFor:
    """For what an autograd node runs: gradients of one of these results or written inputs come, and that of one of these inputs
    is wanted. `tangents`: the same results and written inputs, as the backward counts them."""

    results: frozenset[int]
    written: frozenset[int]
    inputs: frozenset[int]
    tangents: frozenset[int] = frozenset()

    def is_for_all(self, tangents: Collection[int], inputs: Collection[int]) -> bool:
        """Whether it runs for each of these tangents, and for each of these inputs."""
        return self.tangents.issuperset(tangents) and self.inputs.issuperset(inputs)


class CustomBackwards:
    """Marks what custom functions call in their backwards, in the graph that is traced. Made before the function runs."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._inputs = inputs
        self._edges = {
            get_gradient_edge(value)[:2]: k
            for k, value in enumerate(inputs)
            if isinstance(value, torch.Tensor) and value.requires_grad
        }
        self.leads_to: LeadsTo = {}

    def watch(self, results: Sequence[Any]) -> bool:
        """Once the function has run: from here on, the backward may. Tells whether there is a custom function's."""
        ends = [
            (k, value.grad_fn)
            for k, value in enumerate([*results, *self._inputs])
            if isinstance(value, torch.Tensor) and value.grad_fn is not None
        ]
        nodes = [*history((node for _, node in ends), (node for node, _ in self._edges))]
        custom = [node for node in nodes if isinstance(node, BackwardCFunction)]
        leads_to, count = _leads_to(nodes, self._edges), len(results)
        self.leads_to = {
            (None, k) if k < count else (k - count, None): _positions(leads_to[node])
            for k, node in ends
            if node in leads_to
        }
        graph = graph_in_trace()
        if not custom or graph is None:  # as a rule
            return bool(custom)
        led_from = _led_from(nodes, ends)
        for node in custom:
            of = _positions(led_from[node])
            of_results = frozenset(k for k in of if k < count)
            written = frozenset(k - count for k in of - of_results)
            _mark_what_it_calls(node, graph, RunsFor(of_results, written, _positions(leads_to[node])))
        return True


def _led_from(nodes: Sequence[Any], ends: Iterable[tuple[int, Any]]) -> dict[Any, int]:
    """Which tensors lead to each of the nodes, as the bits of a number: there may be many of both. `ends`: where each tensor's
    history begins."""
    found = dict.fromkeys(nodes, 0)
    for k, node in ends:
        if node in found:
            found[node] |= 1 << k
    for node in reversed(nodes):
        for following, _ in node.next_functions:
            if following in found:
                found[following] |= found[node]
    return found


def _leads_to(nodes: Iterable[Any], inputs: Mapping[Any, int]) -> dict[Any, int]:
    """Which inputs, told by their edges, each of the nodes leads to, in the same way."""
    found: dict[Any, int] = {}
    for node in nodes:
        found[node] = 0
        for edge in node.next_functions:
            found[node] |= 1 << inputs[edge] if edge in inputs else found.get(edge[0], 0)
    return found


def _positions(bits: int) -> frozenset[int]:
    return frozenset(k for k, bit in enumerate(reversed(f"{bits:b}")) if bit == "1")


def _mark_what_it_calls(node: Any, graph: torch.fx.Graph, runs_for: RunsFor) -> None:
    last: list[torch.fx.Node] = []

    def before(*_: Any) -> None:
        last.append(next(iter(reversed(graph.nodes))))

    def after(*_: Any) -> None:
        called = last.pop().next
        while called.op != "root":
            called.meta[_RUNS_FOR] = runs_for
            called = called.next

    node.register_prehook(before)
    node.register_hook(after)


def acting(graph: torch.fx.Graph) -> Iterator[tuple[torch.fx.Node, RunsFor | None]]:
    """What a backward does for its own sake, as a draw, and what it runs for; None if it is no custom function's: a pass that
    adds such a node has it run always."""
    for node in graph.nodes:
        if node.op == "call_function" and is_kept_in_backward(node):
            yield node, node.meta.get(_RUNS_FOR)


def name_tangents(graph: torch.fx.Graph, origins: Sequence[tuple[int | None, int | None]]) -> None:
    """Tell what runs for which tangent. `origins`: the written input or else the result that each is of."""
    for node in graph.nodes:
        runs_for = node.meta.get(_RUNS_FOR)
        if runs_for is not None:
            found = (
                k
                for k, (written, result) in enumerate(origins)
                if (written in runs_for.written if written is not None else result in runs_for.results)
            )
            node.meta[_RUNS_FOR] = replace(runs_for, tangents=frozenset(found))
