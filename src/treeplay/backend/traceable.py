"""A captured graph as a function that a trace can run: its own tensors become arguments, and each node keeps its line.

    graph that holds w, called with x  ─▶  function(w, x)  and  [w]

A trace takes what a graph holds for constants, and a compiled constant would miss later changes. As leading arguments they
are ordinary, and known to stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.fx.traceback import preserve_node_meta

from treeplay.torch_seam.dynamo import DATA_OF

_PREFIX = "program."


@dataclass(frozen=True, slots=True)
class Traceable:
    """A function of `held`, called `names`, and then of the graph's own inputs. It computes what the graph does."""

    function: Callable[..., Any]
    held: tuple[torch.Tensor, ...] = ()
    names: tuple[str, ...] = ()
    stopped_at: Callable[[], torch.fx.Node | None] = lambda: None
    """Where a run of the graph raised that was the last one."""


def traceable(program: torch.fx.GraphModule | Callable[..., Any]) -> Traceable:
    """`program` for a trace. A callable that is no graph is left as it is."""
    if not isinstance(program, torch.fx.GraphModule):
        return Traceable(program)
    names = _tensors_of(program)
    interpreted = _Interpreted(program)

    def function(*args: Any) -> Any:
        given = dict(zip(names, args, strict=False))
        return torch.func.functional_call(interpreted, given, args[len(names) :])

    return Traceable(
        function if names else interpreted.forward,
        tuple(names.values()),
        tuple(name.removeprefix(_PREFIX) for name in names),
        lambda: interpreted.runs,
    )


def with_numbers(function: Callable[..., Any], numbers: Mapping[int, Any]) -> Callable[..., Any]:
    """`function` with the arguments at some positions known: what is given there is not looked at.

    A trace would take them for values that it does not know, and a backward that needs one could not have it."""
    if not numbers:
        return function

    def known(*args: Any) -> Any:
        return function(*(numbers.get(at, arg) for at, arg in enumerate(args)))

    return known


def _tensors_of(program: torch.fx.GraphModule) -> dict[str, torch.Tensor]:
    """Parameters and buffers that the graph may use, each once, by their names in `_Interpreted`."""
    if not any(node.op in ("get_attr", "call_module") for node in program.graph.nodes):
        return {}
    named = [*program.named_parameters(), *program.named_buffers()]
    return {f"{_PREFIX}{name}": tensor for name, tensor in named}


class _Interpreted(torch.nn.Module):
    """Runs a graph node by node, so that what is traced meanwhile is noted with the node's line and the user's marks."""

    def __init__(self, program: torch.fx.GraphModule) -> None:
        super().__init__()
        self.program = program
        self.runs: torch.fx.Node | None = None

    def forward(self, *args: Any) -> Any:
        with preserve_node_meta():
            result = _NotingNodes(self).run(*args)
        self.runs = None
        return result


class _NotingNodes(torch.fx.Interpreter):
    """Notes which node runs."""

    def __init__(self, interpreted: _Interpreted) -> None:
        super().__init__(interpreted.program)
        self._interpreted = interpreted

    def run_node(self, n: torch.fx.Node) -> Any:
        self._interpreted.runs = n
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call what a node does; `x.data` as a program does, of which torch tells those who watch its functions."""
        return args[0].data if target is DATA_OF else super().call_function(target, args, kwargs)
