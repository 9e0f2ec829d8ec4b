"""Results of a program whose wrapper gives them back as eager does: every tensor among them is an output, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from treeplay.trace.restore.snapshot import Snapshot
from treeplay.trace.shown import RunFacts
from treeplay.trace.signature.references import References, Refuse
from treeplay.trace.signature.slots import find_writes
from treeplay.trace.survey.found import Survey
from treeplay.values.output import Fresh
from treeplay.values.signature import Ref


class TensorNumbers(References):
    """Numbers the tensors that a run returned or stored. What they share, and whose views they are, is not asked here."""

    def __init__(self, found: Survey, refuse: Refuse, check: Callable[[torch.Tensor], None]) -> None:
        super().__init__(found, refuse)
        self.tensors: list[torch.Tensor] = []
        self._check = check

    def _tensor(self, tensor: torch.Tensor) -> Ref:
        self.check_class(tensor)
        self._check(tensor)
        self.tensors.append(tensor)
        return Fresh(len(self.tensors) - 1)


def look(flat: TensorNumbers, result: Any, snapshot: Snapshot, numbers: list[Any]) -> RunFacts:
    """What a run returned and stored; `flat.tensors` are the tensors of it."""
    structure, refs = flat.of_call(result, snapshot.stored())
    return RunFacts(structure, refs, find_writes(snapshot, flat, numbers), ())
