"""From the tensors that a recorded run returned or stored to references: the very input, a view of one, fresh memory.

There is no trace to ask: memory tells. What lies inside an input's storage is a view of that input; everything else is an
output of the recording, one for each storage, and what shares a storage is a view of its output.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treeplay.torch_seam.autograd import is_used_up
from treeplay.torch_seam.tensors import extent_of, unusual
from treeplay.trace.signature.references import References, Refuse, not_plain, of_another_dtype
from treeplay.trace.survey.found import Survey
from treeplay.values.memory import Extent, OutputMemory
from treeplay.values.output import SameAsInput
from treeplay.values.signature import Ref
from treeplay.values.spec import TensorSpec


class Returned(References):
    """Collects a recorded run's outputs while references to them are made. `inputs` are the tensors it was given."""

    def __init__(self, found: Survey, refuse: Refuse, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__(found, refuse, OutputMemory(map(extent_of, inputs)))
        self.outputs: list[torch.Tensor] = []
        self._inputs = list(inputs)
        # Reversed: of a tensor that is given twice, the first index counts.
        self._indices = {id(tensor): index for index, tensor in reversed(list(enumerate(inputs)))}

    def _tensor(self, tensor: torch.Tensor) -> Ref:
        if id(tensor) in self._indices:
            return SameAsInput(self._indices[id(tensor)])
        self.check_class(tensor)
        if id(tensor) in self.lasting:
            return self._static(tensor)
        self.check_attributes(tensor)
        if unusual(tensor) is not None:
            raise not_plain(self.refuse)
        self._check_history(tensor)
        extent = extent_of(tensor)
        ref = self.in_memory(tensor, extent, extent.whole, self._inputs)
        if ref is None:
            raise of_another_dtype(self.refuse)
        if len(self.memory.made) > len(self.outputs):  # `in_memory` has met new memory
            self._check_mode(tensor)
            self.outputs.append(whole(tensor))
        return ref

    def is_of_state(self, tensor: torch.Tensor) -> bool:
        # Of a program that is recorded nothing tells any more where a tensor is: the run before has told.
        return super().is_of_state(tensor) or (not self.found.tensors and id(tensor) in self._indices)

    def _made(self, base: torch.Tensor) -> Extent | None:
        is_given = id(base) in self.lasting or id(base) in self._indices
        return None if is_given or _is_differentiable(base) else extent_of(base)

    def _check_history(self, tensor: torch.Tensor) -> None:
        if _is_differentiable(tensor):
            raise self.refuse(
                "result",
                "a result needs gradients and the program does not call backward on it itself",
                "call backward (and the optimizer) inside the program, return result.detach(), "
                "or call the program under torch.no_grad()",
            )

    def _check_mode(self, tensor: torch.Tensor) -> None:
        if torch.is_inference_mode_enabled() and not tensor.is_inference():
            raise self.refuse(
                "inference_mode",
                "a result is made where the program leaves the inference mode that is around the call",
                "call the program under torch.no_grad()",
            )


def _is_differentiable(tensor: torch.Tensor) -> bool:
    return tensor.grad_fn is not None and not is_used_up(tensor.grad_fn)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage, without its history."""
    tensor = tensor.detach()
    if tensor.storage_offset() == 0 and TensorSpec.of(tensor).nbytes == tensor.untyped_storage().nbytes():
        return tensor
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.dtype.itemsize,), (1,), 0)
