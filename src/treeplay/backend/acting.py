"""Operators that are called for what they do, not for what they give: torch's ways to compile take them for dead code.

torch.ops.mine.log(x)            a custom operator may print, count, send or check
aten._linalg_check_errors(info)  raises where a factorization failed
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam import fx
from treeplay.torch_seam.operators import CHECKS, OpOverloadPacket
from treeplay.trace.signature.prune import TORCHS_OWN, acts


def acting_in(graph: torch.fx.Graph) -> frozenset[Any]:
    """The operators of a graph, as traced or as captured by Dynamo, that act."""
    found = {node.target for node in graph.nodes if acts(node)}
    for node in graph.nodes:
        if isinstance(node.target, OpOverloadPacket) and not node.users:
            overloads = (getattr(node.target, name) for name in node.target.overloads())
            found.update(overload for overload in overloads if overload.namespace not in TORCHS_OWN)
    return frozenset(found)


@contextlib.contextmanager
def kept(operators: frozenset[Any], *, draws: bool = False) -> Iterator[None]:
    """While this lasts, nothing takes these operators, nor torch's checks, for dead code. `draws`: nor those that draw random
    numbers, which move the generator that later ones are drawn from."""
    with fx.kept_operators({*operators, *CHECKS}), fx.draws_kept() if draws else contextlib.nullcontext():
        yield
