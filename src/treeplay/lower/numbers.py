"""Splits the numbers of a graph: those known before a call (computed on the host) and those that live in tensors.

Every expression of hyper-parameters that an operator uses becomes one slot of a float64 vector (two, if it is an integer),
computed in Python only when a hyper-parameter has changed; kernels read the slot.

    s0 = lr, s1 = beta1      ->   vector [-s0, 1.0 - s1]      "steps[0].item()" stays in the graph
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
import torch.fx

from treeplay.codegen import Writer, list_of, load_source
from treeplay.errors import NoNumber
from treeplay.torch_seam.operators import OpOverload
from treeplay.values.arithmetic import FORMS, NOT_COMPUTED, operand
from treeplay.values.same import is_same


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the numbers of a graph are.

    `scalars`: all number nodes. `known`: those computed on the host. `slots`: where in the vector the rest of the graph
    finds the ones that it reads. `size`: elements of the vector. `compute`: from the numbers that came in to the vector.
    """

    scalars: frozenset[torch.fx.Node]
    known: frozenset[torch.fx.Node]
    slots: dict[torch.fx.Node, int]
    size: int
    compute: Callable[[Sequence[float]], Sequence[float]]


class Vector:
    """The known numbers where kernels read them: float64, filled anew only when a number has changed."""

    def __init__(self, numbers: Numbers, device: torch.device) -> None:
        self._compute = numbers.compute
        self._last: Sequence[float] | None = None
        self._has_zero = False  # which is equal to -0.0
        self.tensor = torch.zeros(numbers.size, dtype=torch.float64, device=device)

    def fill(self, values: Sequence[float]) -> None:
        """Bring the vector up to `values`, in the order of the current stream."""
        if values != self._last or (self._has_zero and not is_same(tuple(values), tuple(self._last))):
            self._last = None  # unknown, if the copy is broken off
            try:
                computed = self._compute(values)
            except NOT_COMPUTED as error:
                raise NoNumber from error
            # A small pageable copy is staged before it returns: nothing waits, and the source may go.
            source = torch.tensor(computed, dtype=torch.float64, device="cpu")
            self.tensor.copy_(source, non_blocking=True)
            if not (self.tensor.is_cuda and torch.cuda.is_current_stream_capturing()):  # a captured copy has not run
                self._last, self._has_zero = values, 0.0 in values


def scalar_nodes(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes whose value is a number: numbers that came in, host scalars, and arithmetic on them."""
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            is_number = "spec" not in node.meta
        elif node.op == "call_function":
            is_number = node.target is torch.ops.aten._local_scalar_dense.default or (
                not isinstance(node.target, OpOverload) and any(argument in found for argument in node.all_input_nodes)
            )
        else:
            is_number = False
        if is_number:
            found.add(node)
    return found


def known_before(graph: torch.fx.Graph, scalars: Collection[torch.fx.Node]) -> list[torch.fx.Node]:
    """Those of a graph's numbers that are known before its operators run: what came in, and what is computed of that alone."""
    found: dict[torch.fx.Node, None] = {}
    for node in graph.nodes:
        sources = node.all_input_nodes
        if node in scalars and (node.op == "placeholder" or (sources and found.keys() >= set(sources))):
            found[node] = None
    return list(found)


def split_numbers(graph: torch.fx.Graph) -> Numbers:
    """Tell the numbers of a traced graph apart and make the function that computes the known ones."""
    scalars = scalar_nodes(graph)
    known: dict[torch.fx.Node, str] = {}
    arguments: list[str] = []
    for node in known_before(graph, scalars):
        if node.op == "placeholder":
            arguments.append(node.name)
            known[node] = node.name
        else:
            known[node] = _expression(node, known)
    read = [node for node in known if any(user not in known for user in node.users)]
    # Every parameter of a group repeats the same expressions: one slot each. An integer has two, of halves that are exact.
    expressions: list[str] = []
    places: dict[tuple[str, bool], int] = {}
    slots: dict[torch.fx.Node, int] = {}
    for node in read:
        is_integer = bool(node.meta.get("is_integer"))
        if (known[node], is_integer) not in places:
            places[known[node], is_integer] = len(expressions)
            whole = known[node]
            expressions += [f"({whole}) >> 32", f"({whole}) & {2**32 - 1}"] if is_integer else [whole]
        slots[node] = places[known[node], is_integer]
    return Numbers(frozenset(scalars), frozenset(known), slots, len(expressions), _compute(arguments, expressions))


def _expression(node: torch.fx.Node, known: dict[torch.fx.Node, str]) -> str:
    parts = [known[part] if isinstance(part, torch.fx.Node) else repr(part) for part in node.args]
    return f"({FORMS[node.target].format(*map(operand, parts))})"


def _compute(arguments: list[str], expressions: list[str]) -> Callable[[Sequence[float]], Sequence[float]]:
    text = Writer()
    with text.block("def run(numbers):"):
        text.unpack(arguments, "numbers")
        text.add(f"return {list_of(expressions)}")
    return load_source(text.source("numbers", entry="run"))
