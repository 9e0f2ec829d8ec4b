"""The text of a launch function: lines, the objects they name, and what a launch remembers for the next one."""

from __future__ import annotations

from typing import Any

from treeplay.codegen import Writer
from treeplay.torch_seam import allocator

FEW = 4  # addresses that are compared one by one


class LaunchText(Writer):
    """A writer that keeps what a launch remembers for the next one: names that the function assigns."""

    def __init__(self, **names: Any) -> None:
        super().__init__(**names)
        self.state: list[str] = []

    def keep(self, name: str, value: Any) -> str:
        """A name whose value changes; it begins as `value`."""
        self.names[name] = value
        self.taken.add(name)
        self.state.append(name)
        return name

    def are_at(self) -> str:
        """The native check whether tensors of a list lie at given addresses."""
        return self.use("are_at", allocator.native("_tensors_data_ptrs_at_indices_equal"))


def lines_of_move(at: str, move: str) -> list[str]:
    """Lines that move to `p`. Where it lies is unknown meanwhile: what is broken off is done anew by the next launch."""
    return [f"{at} = 0", f"{move}(p)", f"{at} = p"]
