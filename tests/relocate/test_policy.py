"""The cheapest way for a tensor, by measured costs."""

from __future__ import annotations

import pytest

from treeplay.relocate.policy import Costs, choose, is_update_cheaper
from treeplay.relocate.table import Row, Site


def row(nodes: int, reason: str | None = None) -> Row:
    return Row("tensor", 0, 4096, 256, tuple(Site(node, 0, 0, 0) for node in range(nodes)), reason)


@pytest.mark.parametrize(
    ("nodes", "nbytes", "is_argument", "moves", "expected"),
    [
        (1, 1 << 30, True, 0, "patched"),
        (1, 4, True, 0, "patched"),
        (200, 4, True, 0, "copied"),
        (200, 1 << 30, True, 0, "patched"),
        (1, 4, False, 0, "pinned"),
        (1, 4, False, 1, "patched"),
        (400, 4, False, 3, "copied"),
    ],
)
def test_policy(nodes, nbytes, is_argument, moves, expected):
    costs = Costs(patch_node_us=1.5, copy_us=6, copy_bytes_per_us=2e6)
    assert choose(row(nodes), nbytes, all_nodes=500, is_argument=is_argument, moves=moves, costs=costs) == expected


def test_what_cannot_be_patched_is_copied():
    assert choose(row(0, "a reason"), 1 << 30, all_nodes=500, is_argument=True) == "copied"


def test_many_nodes_are_moved_by_one_update_of_the_graph():
    costs = Costs(patch_node_us=1.5, template_node_us=0.5, update_node_us=0.04, update_us=2, least_saved_us=10)
    assert not is_update_cheaper(1, 500, costs)
    assert is_update_cheaper(100, 500, costs)
    assert not is_update_cheaper(10, 500, costs)
