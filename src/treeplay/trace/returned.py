"""From the tensors that a recorded run returned or stored to references: the very input, a view of one, fresh memory.

There is no trace to ask: memory tells. What lies inside an input's storage is a view of that input; everything else is an
output of the recording, one for each storage, and what shares a storage is a view of its output.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treeplay.torch_seam.autograd import is_used_up
from treeplay.trace.found import Survey
from treeplay.trace.references import References, Refuse
from treeplay.values.signature import Fresh, Ref, SameAsInput, View
from treeplay.values.spec import TensorSpec


class Returned(References):
    """Collects a recorded run's outputs while references to them are made. `inputs` are the tensors it was given."""

    def __init__(self, found: Survey, refuse: Refuse, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__(found, refuse)
        self.outputs: list[torch.Tensor] = []
        self._inputs = list(inputs)
        self._indices = {id(tensor): index for index, tensor in reversed(list(enumerate(inputs)))}
        self._bases: dict[int, int] = {}  # start of a storage -> the output that it is
        self._leaves: set[int] = set()  # outputs that will require gradients

    def _tensor(self, tensor: torch.Tensor) -> Ref:
        if id(tensor) in self._indices:
            return SameAsInput(self._indices[id(tensor)])
        self.check_class(tensor)
        if id(tensor) in self.lasting:
            return self._static(tensor)
        if not is_plain(tensor):
            raise self.refuse(
                "result",
                "returns or stores a tensor that is more than memory, shape and stride: sparse, conjugated, a subclass",
                "return it as a plain tensor (.to_dense(), .resolve_conj(), .resolve_neg())",
            )
        self._check_history(tensor)
        return self._view_of_input(tensor) or self._fresh(tensor)

    def _view_of_input(self, tensor: torch.Tensor) -> View | None:
        start = tensor.untyped_storage().data_ptr()
        inside = [index for index, item in enumerate(self._inputs) if start and _lies_in(start, item)]
        if not inside:
            return None
        # Of several inputs in one storage, the one whose elements the view is made of.
        index = next((at for at in inside if _contains(self._inputs[at], tensor)), inside[0])
        base = self._inputs[index]
        if base.dtype != tensor.dtype:
            raise self._dtype_view()
        is_apart = not tensor.requires_grad or tensor.grad_fn is None
        is_detached = base.requires_grad and torch.is_grad_enabled() and is_apart
        offset = (tensor.data_ptr() - base.data_ptr()) // tensor.dtype.itemsize
        return _view(SameAsInput(index), tensor, offset, is_detached=is_detached)

    def _fresh(self, tensor: torch.Tensor) -> Ref:
        storage = tensor.untyped_storage()
        known = self._bases.get(storage.data_ptr()) if storage.nbytes() else None
        if known is None:
            known = len(self.outputs)
            self._bases[storage.data_ptr()] = known
            self.outputs.append(whole(tensor))
            if is_whole(tensor):
                self._leaves |= {known} if _is_new_leaf(tensor) else set()
                return Fresh(known, _is_new_leaf(tensor))
        elif self.outputs[known].dtype != tensor.dtype:
            raise self._dtype_view()
        return _view(Fresh(known), tensor, int(tensor.storage_offset()), is_detached=known in self._leaves)

    def _check_history(self, tensor: torch.Tensor) -> None:
        if tensor.grad_fn is not None and not is_used_up(tensor.grad_fn):
            raise self.refuse(
                "result",
                "a result needs gradients and the program does not call backward on it itself",
                "call backward (and the optimizer) inside the program, return result.detach(), "
                "or call the program under torch.no_grad()",
            )

    def _dtype_view(self) -> Exception:
        return self.refuse(
            "result", "returns a view of another dtype than its memory", "return a copy of it (.clone())"
        )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is memory, shape and stride, and nothing more."""
    return (
        tensor.layout is torch.strided
        and type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    )


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor begins where its storage does and is as large."""
    return tensor.storage_offset() == 0 and TensorSpec.of(tensor).nbytes == tensor.untyped_storage().nbytes()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage, without its history."""
    tensor = tensor.detach()
    if is_whole(tensor):
        return tensor
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.dtype.itemsize,), (1,), 0)


def _lies_in(address: int, owner: torch.Tensor) -> bool:
    storage = owner.untyped_storage()
    return storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes()


def _contains(base: torch.Tensor, view: torch.Tensor) -> bool:
    start, end = view.data_ptr(), view.data_ptr() + TensorSpec.of(view).nbytes
    return base.data_ptr() <= start and end <= base.data_ptr() + TensorSpec.of(base).nbytes


def _is_new_leaf(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and tensor.grad_fn is None


def _view(of: Fresh | SameAsInput, tensor: torch.Tensor, offset: int, *, is_detached: bool) -> View:
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    return View(of, shape, stride, offset, is_detached, requires_grad=_is_new_leaf(tensor))
