"""Copies for experiments: sizes, strides, alignment and aliasing of the original, in memory of their own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from treeplay.errors import ArgumentTypeError
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.modes import is_traceable_wrapper_subclass
from treeplay.torch_seam.tensors import as_subclass, negated_view

_T = TypeVar("_T")
ALIGNMENT = 32
"""In bytes: a copy's address has the original's remainder by this, so that the same kernels apply to both."""

_BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
_BY_COLUMN = (torch.sparse_csc, torch.sparse_bsc)
# What Dynamo's marking functions leave on a tensor; not the mark of a fixed address, as the copy has another.
_MARKS = ("_dynamo_", "_has_dynamo_", "_specialize_on")
_ADDRESS_MARK = "_dynamo_static_input_type"


def clone(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy of `x` that shares no memory with it, of the given dtype if there is one.

    It has the sizes, strides (a broadcast stays one, overlapping elements stay overlapping), device, layout
    and class of `x`, an address with the same remainder by 32 bytes, and its marks for dynamic dimensions.
    If `x` is a leaf, it also has its `requires_grad` (where the dtype allows) and a copy of its `.grad`.
    Fake tensors come back as they are. Raises `ArgumentTypeError` if `x` is no tensor, or is quantised and
    a dtype is given.
    """
    if not isinstance(x, torch.Tensor):
        raise ArgumentTypeError(f"clone copies a tensor, got {type(x).__name__} (for a structure: clone_all)")
    if x.is_quantized and dtype is not None:
        raise ArgumentTypeError(f"a quantised tensor cannot be copied to {dtype}: dequantise it first")
    if isinstance(x, FakeTensor):
        return x
    with torch.no_grad():
        return _dressed(_bare_copy(x.detach(), dtype or x.dtype), like=x)


def clone_all(tree: _T) -> _T:
    """A copy of a nest of lists, tuples, dicts and named tuples: its tensors cloned, other leaves passed on.

    Entries that are one object stay one, and tensors that share memory share it in the copy, at the same
    distances. Tensors that share memory also share one version counter there, if they have one dtype.
    """
    tensors = list(_tensors_in(tree, set()))
    with torch.no_grad():
        copies: dict[int, Any] = {}
        for group in _sharing_memory(tensors):
            bare = [clone(group[0])] if len(group) == 1 else _copy_group(group)
            copies.update((id(tensor), twin) for tensor, twin in zip(group, bare, strict=True))
    rebuilt: _T = _rebuilt(tree, copies)
    return rebuilt


def dense_parts(x: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that hold the data of `x`: itself, or the indices and values of a sparse one."""
    if x.layout is torch.sparse_coo:
        return [x._indices(), x._values()]
    if x.layout in _BY_ROW:
        return [x.crow_indices(), x.col_indices(), x.values()]
    if x.layout in _BY_COLUMN:
        return [x.ccol_indices(), x.row_indices(), x.values()]
    if is_traceable_wrapper_subclass(x):
        names, _ = x.__tensor_flatten__()
        return [part for name in names for part in dense_parts(getattr(x, name))]
    return [x]


def is_plain(x: torch.Tensor) -> bool:
    """Whether `x` is one strided view of one storage."""
    return x.layout is torch.strided and not x.is_nested and not is_traceable_wrapper_subclass(x)


def _bare_copy(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if x.layout is torch.sparse_coo or x.layout in (*_BY_ROW, *_BY_COLUMN):
        return _copy_sparse(x, dtype)
    is_per_channel = x.is_quantized and x.qscheme() is not torch.per_tensor_affine
    if not is_plain(x) or is_per_channel:  # torch gives these no memory to lay out by hand
        return x.clone() if dtype is x.dtype else x.to(dtype, copy=True)
    window = x.as_strided((_extent(x),), (1,), x.storage_offset())
    memory = _copy_window(window, dtype, address=x.data_ptr())
    return _reread(memory, dtype, like=x, offset=int(memory.storage_offset()))


def _copy_sparse(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    *where, old = dense_parts(x)
    indices, values = [_bare_copy(part, part.dtype) for part in where], _bare_copy(old.detach(), dtype)
    if x.layout is torch.sparse_coo:
        coalesced = x.is_coalesced()
        return torch.sparse_coo_tensor(indices[0], values, x.shape, is_coalesced=coalesced, check_invariants=False)
    outer, inner = indices
    return torch.sparse_compressed_tensor(outer, inner, values, x.shape, layout=x.layout, check_invariants=False)


def _extent(x: torch.Tensor) -> int:
    """How many elements lie between the first and the last of `x`, both included."""
    if x.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(x.size(), x.stride(), strict=True))


def _copy_window(window: torch.Tensor, dtype: torch.dtype, *, address: int) -> torch.Tensor:
    """The 1-D `window` in new memory, at an address with the remainder that `address` has."""
    length, room = window.numel(), window.numel() + -(-ALIGNMENT // dtype.itemsize)
    if window.is_quantized:
        memory = torch.empty_quantized((room,), window)
    else:
        memory = torch.empty(room, dtype=dtype, device=window.device)
    start = (address - memory.data_ptr()) % ALIGNMENT // dtype.itemsize
    return memory.narrow(0, start, length).copy_(window)


def _reread(memory: torch.Tensor, dtype: torch.dtype, *, like: torch.Tensor, offset: int) -> torch.Tensor:
    """The bytes of `memory` as a `dtype` tensor laid out like `like`, to autograd no view of anything."""
    if memory.is_quantized:
        empty = torch.empty_quantized((0,), memory)
    else:
        empty = torch.empty(0, dtype=dtype, device=memory.device)
    return empty.set_(memory.untyped_storage(), offset, like.size(), like.stride())


def _dressed(bare: torch.Tensor, *, like: torch.Tensor) -> torch.Tensor:
    """`bare` with the class of `like`, its marks, and what it has as a leaf."""
    if type(bare) is not type(like):
        bare = as_subclass(type(like), bare)
    for name, mark in getattr(like, "__dict__", {}).items():
        if name.startswith(_MARKS) and name != _ADDRESS_MARK:
            setattr(bare, name, copy.copy(mark))
    if like.is_leaf:  # asking another tensor for its .grad warns
        can_learn = bare.dtype.is_floating_point or bare.dtype.is_complex
        bare.requires_grad_(like.requires_grad and can_learn)
        if like.grad is not None and can_learn:
            bare.grad = clone(like.grad, dtype=None if bare.dtype is like.dtype else bare.dtype)
    return bare


def _tensors_in(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(value) in seen or not isinstance(value, (torch.Tensor, list, tuple, dict)):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
        return
    for item in value.values() if isinstance(value, dict) else value:
        yield from _tensors_in(item, seen)


def _sharing_memory(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The tensors in groups that each lie in one storage; those without a storage to share stand alone."""
    groups: dict[object, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(_storage_key(tensor), []).append(tensor)
    return list(groups.values())


def _storage_key(x: torch.Tensor) -> object:
    if isinstance(x, FakeTensor) or not is_plain(x) or x.is_quantized or x.is_meta or x.numel() == 0:
        return id(x)
    return x.device, x.untyped_storage().data_ptr()


def _copy_group(group: list[torch.Tensor]) -> list[torch.Tensor]:
    plain = [tensor.detach() for tensor in group]
    is_uniform = len({(x.dtype, x.is_conj(), x.is_neg()) for x in plain}) == 1
    copied = _copy_uniform(plain) if is_uniform else _copy_mixed(plain)
    return [_dressed(bare, like=tensor) for bare, tensor in zip(copied, group, strict=True)]


def _copy_uniform(group: list[torch.Tensor]) -> list[torch.Tensor]:
    """Views of one new tensor, so that writing through one counts up the version of all, as it should."""
    first = min(int(x.storage_offset()) for x in group)
    last = max(int(x.storage_offset()) + _extent(x) for x in group)
    window = group[0].as_strided((last - first,), (1,), first)
    memory = _copy_window(window, window.dtype, address=window.data_ptr())
    shift = memory.storage_offset() - first
    return [memory.as_strided(x.size(), x.stride(), x.storage_offset() + shift) for x in group]


def _copy_mixed(group: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of several dtypes on one new storage, copied byte by byte."""
    first = min(int(x.storage_offset()) * x.itemsize for x in group)
    last = max((int(x.storage_offset()) + _extent(x)) * x.itemsize for x in group)
    window = torch.empty(0, dtype=torch.uint8, device=group[0].device)
    window.set_(group[0].untyped_storage(), first, (last - first,), (1,))
    # Offsets count whole elements: a storage that itself begins at an odd address cannot be matched.
    address = window.data_ptr() if (window.data_ptr() - first) % 16 == 0 else first
    memory = _copy_window(window, torch.uint8, address=address)
    return [_moved(x, memory, shift=int(memory.storage_offset()) - first) for x in group]


def _moved(like: torch.Tensor, memory: torch.Tensor, *, shift: int) -> torch.Tensor:
    """What `like` is in its own storage, `shift` bytes further on in that of `memory`."""
    offset = int(like.storage_offset()) + shift // like.itemsize
    typed = _reread(memory, like.dtype, like=like, offset=offset)
    typed = typed.conj() if like.is_conj() else typed
    return negated_view(typed) if like.is_neg() else typed


def _rebuilt(value: Any, copies: dict[int, Any]) -> Any:
    """`value` with its containers made anew; `copies` holds by id what is made already, so cycles close."""
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, (list, dict)):
        made = copies[id(value)] = copy.copy(value)  # keeps a subclass, and what a defaultdict defaults to
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            made[key] = _rebuilt(item, copies)
    elif isinstance(value, tuple):
        items = [_rebuilt(item, copies) for item in value]
        copies[id(value)] = value._make(items) if hasattr(value, "_make") else type(value)(items)
    return copies.get(id(value), value)
