"""What is cheapest for addresses that move, decided from measured costs: rewriting node by node, or the whole graph. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Microseconds, as measured on an H200. One update of a whole graph: `update_us`, and a bit for each of its nodes."""

    patch_node_us: float = 1.5
    template_node_us: float = 0.75
    update_us: float = 1.5
    update_node_us: float = 0.05
    least_saved_us: float = 10.0  # an update rewrites every node: it is worth its while only where it saves as much

    def patch(self, nodes: int) -> float:
        """Of rewriting that many nodes, one by one."""
        return nodes * self.patch_node_us

    def update(self, nodes: int, all_nodes: int) -> float:
        """Of rewriting that many nodes of the template and updating the whole graph."""
        return self.update_us + nodes * self.template_node_us + all_nodes * self.update_node_us


MEASURED = Costs()


def is_update_cheaper(nodes: int, all_nodes: int, costs: Costs) -> bool:
    """Whether one update of the whole graph beats rewriting `nodes` of its `all_nodes` one by one."""
    return costs.update(nodes, all_nodes) + costs.least_saved_us < costs.patch(nodes)
