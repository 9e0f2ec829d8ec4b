"""Numbers of one form that a GPU computes together.

An optimizer computes the same few numbers for each of its parameters, from the parameter's own count of steps: hundreds of
kernels for numbers, of which these are a handful.

    1 - s1 ** steps[0].item(), 1 - s1 ** steps[1].item(), ...
                                        ─ as they are launched ─▶   1 - s1 ** stack([steps[0], steps[1], ...])
                                        ─ to be compiled ─▶         an operator over the list of these numbers
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from treeplay.lower.foreach import SAME_BY_ONE
from treeplay.lower.numbers import Numbers

_READ = torch.ops.aten._local_scalar_dense.default
_OF_EACH = frozenset({_READ, operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.neg})
"""What does with each element of a tensor what it does with a number, on a GPU: on a CPU, `pow` may differ in the last bit."""
_FEWEST = 4  # to take numbers together and apart again is some kernels too


@dataclass(frozen=True, slots=True)
class _Form:
    """Numbers that the same is done for. `args`: a number for all, or the index of the form of which each has one."""

    target: Any
    nodes: list[Node]
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _OfForm:
    """An argument that is another number for each: those of an earlier form, by its index."""

    index: int


class NumbersTogether:
    """Consecutive numbers of a graph, with no operator on tensors between them. All are computed when the first is needed."""

    def __init__(self, nodes: Sequence[Node], *, is_compiled: bool) -> None:
        self._is_compiled = is_compiled
        self._numbers = frozenset(nodes)
        self._forms: list[_Form] = []
        form_of: dict[Node, int] = {}
        known: dict[Any, int] = {}
        for node in nodes:
            args = tuple(
                _OfForm(form_of[arg]) if isinstance(arg, Node) and arg in form_of else arg for arg in node.args
            )
            # Of what is read, only the type counts; anything else is a number for all.
            told = (node.args[0].meta["spec"].dtype,) if node.target is _READ else args  # type: ignore[union-attr]
            key = node.target, tuple(map(repr, told))  # 0.0 is not -0.0, nor 1
            if key not in known or node.target not in _OF_EACH:
                known[key] = len(self._forms)
                self._forms.append(_Form(node.target, [], args))
            form_of[node] = known[key]
            self._forms[known[key]].nodes.append(node)

    def computed(self, read: Callable[[Node], Any]) -> dict[str, torch.Tensor]:
        """Each number by its name. `read` gives the value of a node from before."""
        values: dict[Node, torch.Tensor] = {}

        def value(item: Any) -> Any:
            return (values[item] if item in values else read(item)) if isinstance(item, Node) else item

        if self._is_compiled:
            self._compute_lists(values, value)
        else:
            self._compute_tensors(values, value)
        return {node.name: number for node, number in values.items()}

    def _compute_lists(self, values: dict[Node, torch.Tensor], value: Callable[[Any], Any]) -> None:
        for form in self._forms:
            for node in form.nodes:
                values[node] = compute(node.target, [value(arg) for arg in node.args])
            taken = [node for node in form.nodes if not self._numbers.issuperset(node.users)]
            if taken:
                values |= dict(zip(taken, SAME_BY_ONE([values[node] for node in taken], 1), strict=True))

    def _compute_tensors(self, values: dict[Node, torch.Tensor], value: Callable[[Any], Any]) -> None:
        whole: dict[int, torch.Tensor] = {}
        for index, form in enumerate(self._forms):
            nodes = form.nodes
            is_of_each = form.target is _READ or any(isinstance(arg, _OfForm) for arg in form.args)
            # Where no argument differs the form is one number, which is not to be taken apart into one for each node.
            if len(nodes) < _FEWEST or not is_of_each:
                values |= {node: compute(node.target, [value(arg) for arg in node.args]) for node in nodes}
                continue
            if form.target is _READ:
                tensors: list[Any] = [value(node.args[0]).reshape(()) for node in nodes]
                whole[index] = torch.stack(tensors).to(torch.float64)
            else:
                args = [
                    self._each(form, at, values, whole) if isinstance(arg, _OfForm) else value(arg)
                    for at, arg in enumerate(form.args)
                ]
                whole[index] = form.target(*args)
            values |= dict(zip(nodes, whole[index].unbind(0), strict=True))

    def _each(self, form: _Form, at: int, values: dict[Node, Any], whole: dict[int, torch.Tensor]) -> torch.Tensor:
        """The argument of all numbers of a form, as a tensor: mostly the numbers of another one, in their order."""
        given: list[Any] = [node.args[at] for node in form.nodes]
        index = form.args[at].index
        if index in whole and given == self._forms[index].nodes:
            return whole[index]
        return torch.stack([values[node] for node in given])


def compute(target: Any, args: Sequence[Any]) -> torch.Tensor:
    """One number, of numbers that are tensors."""
    made: torch.Tensor = args[0].to(torch.float64).reshape(()) if target is _READ else target(*args)
    return made


def numbers_together(
    graph: torch.fx.Graph, numbers: Numbers, *, is_compiled: bool = False
) -> dict[str, NumbersTogether]:
    """By the name of each number that is not known before, those that it is computed with, for a compiler if `is_compiled`."""
    found: dict[str, NumbersTogether] = {}
    run: list[Node] = []

    def end() -> None:
        if run:
            found.update(dict.fromkeys((node.name for node in run), NumbersTogether(run, is_compiled=is_compiled)))
            run.clear()

    for node in graph.nodes:
        if node in numbers.known or node.op == "placeholder":
            continue
        if node in numbers.scalars:
            run.append(node)
        else:
            end()
    end()
    return found
