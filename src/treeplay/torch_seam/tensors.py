"""Tensors and generators: what they are, their identity, who shares their memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch
import torch._prims_common
from torch.multiprocessing.reductions import StorageWeakRef

from treeplay.torch_seam.modes import DisableTorchFunctionSubclass, has_plain_class, is_wrapper
from treeplay.values.kinds import slots_of
from treeplay.values.layout import expanded
from treeplay.values.memory import Extent
from treeplay.values.spec import TensorSpec

TensorBase: Any = torch._C.TensorBase
"""The class in C behind `torch.Tensor`, with the attributes that it defines."""
_TORCH = os.path.dirname(torch.__file__) + os.sep
mkldnn_layout: Any = torch._mkldnn  # type: ignore[attr-defined]


def replaced_methods() -> dict[Any, Any]:
    """Functions that somebody has put on `torch.Tensor` in the place of methods in C, each with the method: of `x * 5`, which
    runs the method, torch tells a function mode whatever is called `mul` there."""
    methods = vars(TensorBase)
    return {
        entry: methods[name]
        for name, entry in vars(torch.Tensor).items()
        if name in methods and type(entry) is FunctionType and not _is_of_torch(entry.__code__)
    }


def _is_of_torch(code: CodeType) -> bool:
    return code.co_filename.startswith(_TORCH) or "handle_torch_function" in code.co_names


def is_initialised(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory: a lazy layer's parameters have none yet."""
    return not isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)  # type: ignore[attr-defined]


def view_base(tensor: torch.Tensor) -> torch.Tensor | None:
    """What autograd has a tensor down as a view of: None for one that is detached, whose memory may be that of others."""
    with DisableTorchFunctionSubclass():
        return tensor._base


def has_strides(tensor: torch.Tensor) -> bool:
    """Whether a tensor is described by shape and strides. A nested one calls its layout strided too."""
    with DisableTorchFunctionSubclass():
        return tensor.layout is torch.strided and not tensor.is_nested and is_initialised(tensor)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """The spec of a strided tensor of the user's, whose class is not asked."""
    with DisableTorchFunctionSubclass():
        return TensorSpec.of(tensor)


def unusual(tensor: torch.Tensor) -> str | None:
    """What makes a tensor more than memory, shape and stride; None for a plain one."""
    if tensor.layout is not torch.strided:
        return str(tensor.layout)
    if not has_plain_class(tensor):
        return type(tensor).__name__
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and (slot := next(slots_of(tensor), None)) is not None:
        return f"{type(tensor).__name__}, whose class has the slot `{slot[0]}`"  # where another one may have something else
    if tensor.is_conj() or tensor.is_neg():
        return "tensor that is conjugated or negated when read"
    return "quantized tensor" if tensor.is_quantized else None


def is_known_zero(tensor: torch.Tensor) -> bool:
    """Whether a tensor is zeros without memory, as forward-mode derivatives make them."""
    return bool(torch._is_zerotensor(tensor))


def storage_of(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage while it is alive."""
    return int(tensor.untyped_storage()._cdata)


def is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two strided tensors are the same elements of one storage, in the same order; autograd may know them apart."""
    if not (has_strides(one) and has_strides(other)):
        return False
    lie = [(t.shape, t.stride(), t.storage_offset(), t.dtype, t.is_conj(), t.is_neg()) for t in (one, other)]
    return storage_of(one) == storage_of(other) and lie[0] == lie[1]


class StorageName:
    """The identity of a tensor's storage, which nobody else gets as long as this lives. It does not keep the memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._ref: Any = StorageWeakRef(tensor.untyped_storage())

    def is_of(self, value: Any) -> bool:
        """Whether `value` is a tensor of that storage."""
        return isinstance(value, torch.Tensor) and has_strides(value) and storage_of(value) == self._ref.cdata


def extent_of(tensor: torch.Tensor) -> Extent:
    """The memory of a strided tensor."""
    storage, spec = tensor.untyped_storage(), TensorSpec.of(tensor)
    begin = None if storage.device.type == "meta" else storage.data_ptr()  # of a fake too
    return Extent(
        int(storage._cdata), begin, storage.nbytes(), int(tensor.storage_offset()) * spec.dtype.itemsize, spec
    )


def strided_copy(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A copy of `tensor` with the given strides, in the least memory; along a dimension of stride 0 its first part is shown."""
    size, stride = tuple(tensor.size()), tuple(stride)
    first = tensor
    for dimension in expanded(size, stride):
        first = first.narrow(dimension, 0, min(1, size[dimension]))
    made = torch.empty_strided(first.size(), stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(first).expand(tensor.size())


def view_in_block(block: torch.Tensor, begin: int, like: torch.Tensor | TensorSpec) -> torch.Tensor:
    """A tensor of a shape, strides and dtype in a block of bytes, from byte `begin` on."""
    spec = TensorSpec.of(like) if isinstance(like, torch.Tensor) else like
    return block.view(spec.dtype).as_strided(spec.shape, spec.stride, begin // spec.dtype.itemsize)


def view_in_memory_of(outer: torch.Tensor, begin: int, spec: TensorSpec) -> torch.Tensor:
    """A tensor of a shape, strides and dtype in the memory of another one, from its byte `begin` on."""
    if spec.dtype == outer.dtype and begin % outer.itemsize == 0:
        return outer.as_strided(spec.shape, spec.stride, begin // outer.itemsize)
    elements = outer.untyped_storage().nbytes() // outer.itemsize
    flat = outer.as_strided((elements,), (1,), 0).view(torch.uint8)
    # A view as another type takes whole elements of it. Where the storage ends is looked at when the shape is given.
    return view_in_block(flat[: elements * outer.itemsize // 16 * 16], begin, spec)


def uses_of_storage(tensor: torch.Tensor) -> int:
    """How many tensors hold the storage of `tensor`, itself included."""
    storage = tensor.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1  # this handle


def is_alone(tensor: torch.Tensor) -> bool:
    """Whether no other tensor shares the memory of `tensor`. Of memory that is not torch's own (a NumPy array's) that
    cannot be known: it may be in several storages."""
    return uses_of_storage(tensor) == 1 and owns_memory(tensor)


def fills_new_memory(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor is alone in memory that is no larger than it."""
    size = tensor.numel() * tensor.itemsize
    return not tensor.storage_offset() and tensor.untyped_storage().nbytes() == size and is_alone(tensor)


def owns_memory(tensor: torch.Tensor) -> bool:
    """Whether torch allocated the memory of `tensor`: then it is in no other storage."""
    return tensor.untyped_storage().resizable()


shares_storage = torch._C._is_alias_of  # type: ignore[attr-defined]

empty_strided_host: Callable[..., torch.Tensor] = getattr(torch._C._dynamo.guards, "_empty_strided_cpu")  # noqa: B009 - not in torch's stubs


def address_of(generator: torch.Generator) -> int:
    """What identifies a generator: operators are given another Python object of the same one."""
    return int(generator._cdata)  # type: ignore[attr-defined]


def is_view_elsewhere(tensor: torch.Tensor) -> bool:
    """Whether a tensor without history was made as a view, and one of the two was given other memory since."""
    base = None if tensor.requires_grad or is_wrapper(tensor) else tensor._base
    return base is not None and not torch._C._is_alias_of(tensor, base)  # type: ignore[attr-defined]


def suggested_format(tensor: torch.Tensor) -> torch.memory_format:
    """How operators that make a new tensor lay it out for one like this: contiguous, or with the channels last."""
    found: torch.memory_format = torch._prims_common.suggest_memory_format(tensor)
    return found
