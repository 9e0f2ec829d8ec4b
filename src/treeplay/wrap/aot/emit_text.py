"""The text of a generated function as it grows, and lines that calls and nodes have in common."""

from __future__ import annotations

from typing import Any

from treeplay.wrap.aot import torch_private
from treeplay.wrap.aot.plan import CallPlan

_INDENT = "    "


class Text:
    """Lines and the global names that they use."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}

    def add(self, *lines: str) -> None:
        self.lines += [_INDENT + line for line in lines]

    def use(self, name: str, value: Any) -> str:
        self.names[name] = value
        return name

    def text(self, header: str) -> str:
        return "\n".join([header, *self.lines]) + "\n"


def tokens(count: int) -> str:
    """What stands for tokens: they are there for the order in the graph only."""
    return f"[{', '.join(['None'] * count)}]"


def take_random_values(text: Text, plan: CallPlan) -> None:
    """The seed and offset that the graph takes, if it does."""
    if plan.has_functional_random:
        text.use("random_values", torch_private.random_values)
        text.use("set_random_offset", torch_private.set_random_offset)
        text.add("args += random_values()")
