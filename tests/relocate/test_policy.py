"""The cheapest way to move addresses, by measured costs."""

from __future__ import annotations

from treeplay.relocate.policy import Costs, is_update_cheaper


def test_many_nodes_are_moved_by_one_update_of_the_graph():
    costs = Costs(patch_node_us=1.5, template_node_us=0.5, update_node_us=0.04, update_us=2, least_saved_us=10)
    assert not is_update_cheaper(1, 500, costs)
    assert is_update_cheaper(100, 500, costs)
    assert not is_update_cheaper(10, 500, costs)
