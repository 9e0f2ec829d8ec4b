"""What is cheapest for a tensor that may move: decided from measured costs. Pure.

pinned    its address is compared; a move is the exception     state that has never moved
patched   its address is rewritten when it moves               arguments, and state that moved
copied    its values are copied to where the recording reads   what cannot be patched, or is small and read by many nodes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from treeplay.relocate.table import Row

Policy = Literal["pinned", "patched", "copied"]


@dataclass(frozen=True, slots=True)
class Costs:
    """Microseconds, as measured on an H200. One update of a whole graph: `update_us`, and a bit for each of its nodes."""

    patch_node_us: float = 1.5
    copy_us: float = 6.0
    copy_bytes_per_us: float = 2e6  # 4e12 bytes a second, half of them read
    template_node_us: float = 0.75
    update_us: float = 1.5
    update_node_us: float = 0.05
    least_saved_us: float = 10.0  # an update rewrites every node: it is worth its while only where it saves as much

    def patch(self, nodes: int) -> float:
        """Of rewriting that many nodes, one by one."""
        return nodes * self.patch_node_us

    def copy(self, nbytes: int) -> float:
        """Of copying that many bytes."""
        return self.copy_us + nbytes / self.copy_bytes_per_us

    def update(self, nodes: int, all_nodes: int) -> float:
        """Of rewriting that many nodes of the template and updating the whole graph."""
        return self.update_us + nodes * self.template_node_us + all_nodes * self.update_node_us


MEASURED = Costs()


def choose(
    row: Row, nbytes: int, *, all_nodes: int, is_argument: bool, moves: int = 0, costs: Costs = MEASURED
) -> Policy:
    """What to do with a tensor of a graph of `all_nodes`; `moves` is how often state was found to have moved."""
    if not is_argument and not moves:
        return "pinned"
    if row.is_patchable and _move(row, all_nodes, costs) <= costs.copy(nbytes):
        return "patched"
    return "copied"


def is_update_cheaper(nodes: int, all_nodes: int, costs: Costs = MEASURED) -> bool:
    """Whether one update of the whole graph beats rewriting `nodes` of its `all_nodes` one by one."""
    return costs.update(nodes, all_nodes) + costs.least_saved_us < costs.patch(nodes)


def _move(row: Row, all_nodes: int, costs: Costs) -> float:
    nodes = len(row.nodes)
    return costs.update(nodes, all_nodes) if is_update_cheaper(nodes, all_nodes, costs) else costs.patch(nodes)
