"""What one trace knows of its symbolic numbers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch
import torch.fx

from treeplay.guards.reads.reads import Reads
from treeplay.observe.lines import user_location
from treeplay.values.location import Location


@dataclass(frozen=True, slots=True)
class ScalarGuard:
    """A Python expression over the scalar inputs `s0, s1, ...` and the value it must keep; `where` the program needs that
    value itself, and not only an answer to a comparison."""

    expression: str
    expected: bool | float
    where: Location | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.expression} is {self.expected}"


@dataclass(slots=True)
class ScalarWorld:
    """What one trace knows of its symbolic numbers: the graph they are written to and the guards they left."""

    graph: torch.fx.Graph
    guards: dict[str, ScalarGuard] = field(default_factory=dict)
    partial: list[tuple[str, torch.fx.Node]] = field(default_factory=list)
    reads: Reads | None = None  # which is not to note what we do ourselves
    check: Callable[[], None] | None = None  # whether the run may go on to compute
    thread: int = field(default_factory=get_ident)
    made: list[weakref.ref[Any]] = field(default_factory=list)  # the nodes of its numbers

    @property
    def is_mine(self) -> bool:
        """Whether this thread traces. Another one that comes across a number finds today's value, and leaves no mark."""
        return get_ident() == self.thread

    def has_left(self) -> bool:
        """Whether a number that the run computed is alive still. One that stands for an input is in hands of ours too."""
        nodes = [node for ref in self.made if (node := ref()) is not None]
        return any(not isinstance(node.node, torch.fx.Node) or node.node.op != "placeholder" for node in nodes)

    def let_go(self) -> None:
        """Refer to nothing of the run any more."""
        self.reads = self.check = None

    def call(self, fn: Callable[..., Any], *args: Any) -> torch.fx.Node:
        """A node of the graph for a call."""
        if self.check is not None:
            self._unnoted(self.check)
        node: torch.fx.Node = self._unnoted(lambda: self.graph.call_function(fn, args))
        return node

    def guard(self, text: str, expected: bool | float) -> None:
        """Remember that `text` was decided to be `expected`."""
        if text not in self.guards:
            where = None if isinstance(expected, bool) else self._unnoted(user_location)
            self._unnoted(lambda: self.guards.setdefault(text, ScalarGuard(text, expected, where)))

    def note_partial(self, text: str | None, node: Any) -> None:
        """Remember what was computed, and could not be of other numbers."""
        if text is not None and isinstance(node, torch.fx.Node):
            self._unnoted(lambda: self.partial.append((text, node)))

    def all_guards(self, stored: Iterable[str]) -> tuple[ScalarGuard, ...]:
        """Those of the run whose graph is complete. Where Python cannot compute what the run did, it raises, which the program
        may handle: so what no replay computes, for an operator, a guard or to store it, is a guard of its own."""
        computed = dict.fromkeys([*self.guards, *stored, *(text for text, node in self.partial if node.users)])
        found = list(self.guards.values())
        for text, _ in reversed(self.partial):
            if text not in computed and not any(text in each for each in computed):
                computed[text] = None
                found.append(ScalarGuard(f"({text}) is not None", expected=True))
        return tuple(found)

    def _unnoted(self, do: Callable[[], Any]) -> Any:
        was_noting = self.reads is not None and self.reads.pause()
        try:
            return do()
        finally:
            if self.reads is not None and was_noting:
                self.reads.resume()
