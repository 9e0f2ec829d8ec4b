"""`treeplay.explain`: which graphs `torch.compile` makes of a program, and what keeps each from being recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.backend.account import collecting
from treeplay.errors import ArgumentTypeError
from treeplay.report.check import is_jitted
from treeplay.settings import settings
from treeplay.torch_compile import backend
from treeplay.torch_seam import trees as pytree
from treeplay.torch_seam.autograd import history
from treeplay.values.captured import GraphReport
from treeplay.values.refusal import Reason


@dataclass(frozen=True, slots=True)
class Explanation:
    """The graphs of a program in the order of their compiles. Printed, it is text for a person."""

    program: str
    graphs: tuple[GraphReport, ...]

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """All that keeps graphs from being recorded."""
        return tuple(skip.reason for graph in self.graphs for skip in graph.skips)

    @property
    def seconds_a_call(self) -> float:
        """What the graphs take on their device, forward and backward once each; those that could not be timed count nothing."""
        return sum(graph.seconds_a_call or 0.0 for graph in self.graphs)

    @property
    def unrecorded_seconds(self) -> float:
        """What of that is in graphs that cannot be recorded."""
        return sum(graph.seconds_a_call or 0.0 for graph in self.graphs if graph.outcome == "skipped")

    def __str__(self) -> str:
        skipped = sum(graph.outcome == "skipped" for graph in self.graphs)
        head = f"{self.program}: {len(self.graphs)} graphs, {skipped} that cannot be recorded"
        if self.seconds_a_call:
            lost, whole = self.unrecorded_seconds * 1e3, self.seconds_a_call * 1e3
            head += f"; {lost:.3g} of {whole:.3g} ms a call are left unrecorded"
        lines = [f"└─ {line}" if k == 0 else f"   {line}" for graph in self.graphs for k, line in _numbered(graph)]
        return "\n".join([head, *lines])


def _numbered(graph: GraphReport) -> list[tuple[int, str]]:
    return list(enumerate(str(graph).splitlines()))


def explain(
    program: Callable[..., Any], *args: Any, options: Mapping[str, Any] | None = None, **kwargs: Any
) -> Explanation:
    """Compile `program` anew with `torch.compile`, run it once on these arguments, and say what became of each graph.

    A module or function that is compiled already is explained by its original. The run has the program's effects. Where its
    result needs a gradient, the backward runs too, without a mark on any `.grad`. Each graph is timed on copies of what it is
    given, which takes memory for one more set of them. Raises `ArgumentTypeError` for what cannot be called, and for a jitted
    program, which explains itself: `program.explain()`.
    """
    if not callable(program):
        raise ArgumentTypeError(f"explain: expected a callable or a module, found {type(program).__name__}")
    if is_jitted(program):
        raise ArgumentTypeError(
            "explain: this program is jitted, and `program.explain()` says what became of its calls"
        )
    original = getattr(program, "_orig_mod", None) or getattr(program, "_torchdynamo_orig_callable", None) or program
    chosen = dict(options or {})

    def anew(
        gm: torch.fx.GraphModule, inputs: Any
    ) -> Callable[..., Any]:  # its own backend: Dynamo knows no graph for it
        return backend(gm, inputs, options=chosen)

    with settings.changed(enabled=True), collecting() as accounts:
        result = torch.compile(original, backend=anew)(*args, **kwargs)
        _run_backward(result)
    name = str(getattr(original, "__qualname__", type(original).__name__))
    return Explanation(name, tuple(account.report() for account in accounts))


def _run_backward(result: Any) -> None:
    """Run the backward of what needs a gradient, into gradients that nobody keeps."""
    outputs = [
        leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None
    ]
    nodes = history(output.grad_fn for output in outputs)
    leaves = [node.variable for node in nodes if hasattr(node, "variable")]
    if leaves:
        torch.autograd.grad(outputs, leaves, [torch.ones_like(output) for output in outputs], allow_unused=True)
