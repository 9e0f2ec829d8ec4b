"""Autograd's graphs as they are walked."""

from __future__ import annotations

import torch

from treeplay.torch_seam.autograd import history


def test_a_history_has_each_node_once_and_after_what_it_leads_to() -> None:
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    known = x * 2
    shared = known - y
    result = (shared / 3 - shared) * known
    nodes = [*history([result.grad_fn, shared.grad_fn], [known.grad_fn])]
    assert len({*nodes}) == len(nodes) == 5
    place = {node: k for k, node in enumerate(nodes)}
    for node in nodes:
        assert all(place.get(following, -1) < place[node] for following, _ in node.next_functions)
