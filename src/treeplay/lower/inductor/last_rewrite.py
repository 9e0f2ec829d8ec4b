"""The last rewrite of a graph in Inductor: signs of zeros are kept, and results that may not share memory lie apart.

`mark_results` notes on a graph which results are visible and which may share memory; the pass that `last_rewrite` gives, behind
all others, reads it there. Inductor's cache knows the pass by its files, and the graph by what is noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from treeplay.lower import masked
from treeplay.lower.inductor import late, memory, scaled, signs
from treeplay.lower.inductor.memory import Groups, keep_apart
from treeplay.lower.inductor.own_lowerings import EMITS
from treeplay.lower.inductor.signs import keep_signs
from treeplay.torch_seam.inductor import CustomGraphPass, get_hash_for_files, inductor_config

_GROUPS = "treeplay_groups"
LAST_PASS = "post_grad_custom_post_pass"


class _LastRewrite(CustomGraphPass):
    """Runs behind Inductor's own passes, the last of which leave out no-ops; and behind the user's."""

    def __init__(self, others: Sequence[Any]) -> None:
        self._others = others

    def __call__(self, graph: torch.fx.Graph) -> None:
        for other in self._others:
            other(graph)
        keep_signs(graph)
        groups = graph.output_node().meta.get(_GROUPS)
        if groups is not None:  # else it is a child graph, which writes nothing
            keep_apart(graph, groups)

    def uuid(self) -> Any:
        """What Inductor's cache knows it by; None if it cannot know the user's."""
        told = [other.uuid() if isinstance(other, CustomGraphPass) else None for other in self._others]
        return (
            None
            if None in told
            else (get_hash_for_files(tuple(part.__file__ for part in (memory, late, masked, scaled, signs))), *told)
        )


def last_rewrite() -> CustomGraphPass:
    """The pass, behind those of the user's that come last."""
    found: Any = inductor_config.post_grad_custom_post_pass
    return _LastRewrite(found if isinstance(found, (list, tuple)) else [found] if found is not None else [])


def mark_results(module: torch.fx.GraphModule, visible: Sequence[int] | None, groups: Groups) -> None:
    """Note which results the caller sees, and which may share memory."""
    output = module.graph.output_node()
    results: Any = output.args[0]
    chosen = [
        at for at in (range(len(results)) if visible is None else visible) if isinstance(results[at], torch.fx.Node)
    ]
    output.meta["user_visible_output_idxs"] = chosen
    output.meta[_GROUPS] = groups
    module.meta["treeplay"] = (EMITS, groups, *chosen)  # Inductor's cache looks at this, and not at the node's
