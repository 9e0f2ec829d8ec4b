"""What a call takes back if one of its operators fails: what the call function is told to keep before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from treeplay.plan.devices import CPU
from treeplay.plan.failing import to_keep
from treeplay.record.front import Front
from treeplay.values.failing import ToKeep
from treeplay.values.overlap import overlaps_itself
from treeplay.values.signature import Kind
from treeplay.wrap.take_back import TakeBack


def take_back(front: Front, inputs: Sequence[torch.Tensor], *, is_in_order: bool) -> TakeBack | None:
    """What ends a call on the CPU whose operators fail; None where nothing can be taken back. On a GPU a failure of an
    operator is met after the launch, if at all, and not by the call, which can only read whether values passed checks."""
    if front.traced.signature.answer is not None:
        keep_all = ToKeep(front.traced.signature.mutated, draws=bool(front.traced.generators))
        return TakeBack(keep_all, front.traced.generators)
    keep = to_keep(front.traced.graph, is_in_order=is_in_order)
    if front.device != CPU or keep is None:
        return None
    if front.traced.signature.kind is Kind.DIFFERENTIABLE:  # arguments are written after the graph
        keep = replace(keep, written=())
    if any(overlaps_itself(inputs[at]) for at in keep.written):
        return None
    return TakeBack(keep, front.traced.generators)
