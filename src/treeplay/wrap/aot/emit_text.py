"""The text of a generated function as it grows, and lines that calls and nodes have in common."""

from __future__ import annotations

from typing import Any

from treeplay.torch_seam import aot, flags
from treeplay.wrap.aot import node
from treeplay.wrap.aot.plan import CallPlan

_INDENT = "    "


class WrapText:
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


def run_graph(text: WrapText, *, is_boxed: bool = True, run: str = "run") -> str:
    """What calls `run` with `args` and autocast off: the casts are in the graph. What is not boxed takes them one by one."""
    text.use("run_plainly", node.run_plainly)
    text.use("is_any_autocast_enabled", flags.is_any_autocast_enabled)
    given = "args" if is_boxed else "*args"
    return f"run_plainly({run}, {given}) if is_any_autocast_enabled() else {run}({given})"


def count_values(text: WrapText, count: int, values: str = "values", place: str = "forward") -> None:
    """Lines that compare how many values came with what the plan says; a lone one need not come in a list."""
    text.use("wrong_count", node.wrong_count)
    if count == 1:
        text.add(f"if type({values}) is not tuple and type({values}) is not list: {values} = ({values},)")
    text.add(f"if len({values}) != {count}: raise wrong_count({count}, {values}, {place!r})")


def take_random_values(text: WrapText, plan: CallPlan) -> None:
    """The seed and offset that the graph takes, if it does."""
    if plan.has_functional_random:
        text.use("random_values", aot.random_values)
        text.use("set_random_offset", aot.set_random_offset)
        text.add("args += random_values()")
