"""Experiments on a module that leave no trace: note its values and the random state, put them back later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn.parameter import is_lazy

from treeplay.errors import ArgumentTypeError
from treeplay.observe.rng import read_rng, write_rng
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.modes import is_traceable_wrapper_subclass

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MISSING = object()


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """A name in a module's table of parameters or buffers, and what stood under it."""

    table: dict[str, torch.Tensor | None]
    name: str
    held: torch.Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class _Saved:
    """A tensor, an alias that keeps its memory, and a copy of its value."""

    tensor: torch.Tensor
    home: torch.Tensor
    value: torch.Tensor


def checkpoint(module: torch.nn.Module) -> Callable[[], None]:
    """Note the module's parameters, buffers and the random state; the function returned puts them back.

    It does so in place, as often as it is called: the same tensor objects at the same addresses get the
    noted values. What has its noted value, bit by bit, is not written. Gradients, the training flag and names
    added since are left alone. Raises `ArgumentTypeError` if `module` is no module, or has tensors without
    values (lazy or fake ones).
    """
    if not isinstance(module, torch.nn.Module):
        raise ArgumentTypeError(f"a checkpoint is of a torch.nn.Module, got {type(module).__name__}")
    slots = list(_slots(module))
    tensors = {id(slot.held): slot.held for slot in slots if slot.held is not None}
    saved = [_save(tensor) for tensor in tensors.values()]
    rng = read_rng()

    def restore() -> None:
        for slot in slots:
            if slot.table.get(slot.name, _MISSING) is not slot.held:
                slot.table[slot.name] = slot.held
        with torch.no_grad():
            for entry in saved:
                _put_back(entry)
        write_rng(rng)

    return restore


def _slots(module: torch.nn.Module) -> Iterator[_Slot]:
    for name, part in module.named_modules():
        for table in (part._parameters, part._buffers):
            for key, held in table.items():
                _check_value(held, f"{name}.{key}".lstrip("."))
                yield _Slot(table, key, held)


def _check_value(tensor: torch.Tensor | None, name: str) -> None:
    if tensor is not None and is_lazy(tensor):
        raise ArgumentTypeError(f"{name} has no value before the module's first call: call it once")
    if isinstance(tensor, FakeTensor):
        raise ArgumentTypeError(f"{name} is a fake tensor and has no value to come back to")


def _save(tensor: torch.Tensor) -> _Saved:
    return _Saved(tensor, tensor.detach(), tensor.detach().clone())


def _put_back(saved: _Saved) -> None:
    if _place(saved.tensor) != _place(saved.home):
        saved.tensor.data = saved.home
    for part, value in zip(_dense_parts(saved.tensor), _dense_parts(saved.value), strict=True):
        # By value, not by version: batch norm writes its running statistics without counting up.
        if not part.is_meta and not torch.equal(as_integers(part), as_integers(value)):
            _once_per_element(part, part).copy_(_once_per_element(value, part))


def _place(x: torch.Tensor) -> tuple[object, ...]:
    """Where and how the data of `x` lies."""
    if x.layout is torch.strided and not x.is_nested and not is_traceable_wrapper_subclass(x):
        return x.device, x.dtype, x.shape, x.stride(), x.data_ptr()
    # An operation in place may give a sparse tensor new parts.
    return x.layout, x.shape, *(_place(part) for part in _dense_parts(x) if part is not x)


def _dense_parts(x: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that hold the data of `x`: itself, or the indices and values of a sparse one."""
    if x.layout is torch.sparse_coo:
        return [x._indices(), x._values()]
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [x.crow_indices(), x.col_indices(), x.values()]
    if x.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [x.ccol_indices(), x.row_indices(), x.values()]
    if is_traceable_wrapper_subclass(x):
        names, _ = x.__tensor_flatten__()
        return [part for name in names for part in _dense_parts(getattr(x, name))]
    return [x]


def as_integers(x: torch.Tensor) -> torch.Tensor:
    """`x` as integers: floats would not tell -0.0 from 0.0, and never find NaN equal to itself."""
    if x.is_quantized:
        return x.int_repr()
    if x.dtype.is_complex:
        x = torch.view_as_real(x.resolve_conj())
    return x.view(_BITS[x.itemsize]) if x.dtype.is_floating_point else x


def _once_per_element(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`x` without what `like` repeats by broadcasting, which torch refuses to write to."""
    for dim, (size, stride) in enumerate(zip(like.size(), like.stride(), strict=True)):
        if stride == 0 and size > 1:
            x = x.narrow(dim, 0, 1)
    return x
