"""NumPy arrays among the arguments: while a program is traced, something stands for each that can only become a tensor.

call        array ─ from_numpy ─▶ tensor over its memory, an argument like any other
trace       GivenArray ─ torch.as_tensor, torch.tensor, torch.from_numpy ─▶ that tensor
                       ─ anything that NumPy does with an array          ─▶ a refusal: no recording would repeat it
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.guards.reads.names import asks_for_a_type
from treeplay.guards.reads.reads import Reads
from treeplay.observe.lines import is_users_or_text, user_location
from treeplay.torch_seam.patched import Shared, all_wanted
from treeplay.values.kinds import numpys

_SHOWN = frozenset(("shape", "dtype", "ndim", "size", "strides", "nbytes", "itemsize"))  # which a key has in it


def can_be_a_tensor(value: Any) -> bool:
    """Whether a value is a NumPy array whose memory a tensor may share."""
    if type(value) not in numpys("ndarray") or not value.flags.writeable:
        return False
    try:
        torch.from_numpy(value)
    except (TypeError, ValueError):  # of strings or objects; it goes backwards
        return False
    return True


class GivenArray:
    """Stands for an array of the arguments: it says what kind of array it is, and becomes a tensor."""

    _array: Any
    _tensor: torch.Tensor
    _refuse: Callable[..., Refusal]

    def __init__(self, array: Any, tensor: torch.Tensor, refuse: Callable[..., Refusal]) -> None:
        vars(self).update(_array=array, _tensor=tensor, _refuse=refuse)  # past `__setattr__`, which refuses

    # By this, `isinstance` takes it for an array; `type` does not.
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._array)

    def __len__(self) -> int:
        return len(self._array)

    def __getattr__(self, name: str) -> Any:
        if name in _SHOWN:
            return getattr(self._array, name)
        raise self._refused(name)

    def _refused(self, name: str) -> Refusal:
        return self._refuse(
            f"ndarray.{name}",
            "NumPy computes with an argument, and a replay runs no Python",
            "make a tensor of it first (`torch.as_tensor(array)`), or compute in NumPy before the call",
            user_location(),
        )

    __hash__ = None  # type: ignore[assignment]


def asks_for_types(reads: Reads) -> bool:
    """Whether code of the user's among what ran may have asked for the type of what stands for an array or a number."""
    return reads.may_have_run(lambda code: is_users_or_text(code.co_filename) and asks_for_a_type(code))


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: GivenArray, *_: Any, **__: Any) -> Any:
        raise self._refused(name)

    return refuse


_ARITHMETIC = "add sub mul truediv floordiv mod pow matmul divmod and or xor lshift rshift"
_ALONE = (
    "eq ne lt le gt ge neg pos abs invert bool int float complex index contains getitem setitem delitem iter "
    "array array_ufunc array_function setattr delattr repr str format copy deepcopy reduce_ex "
    "next"  # which no array has: so it is not taken for a container of its tensor
)
_NAMES = [*_ALONE.split(), *(prefix + name for name in _ARITHMETIC.split() for prefix in ("", "r", "i"))]
for _name in [f"__{name}__" for name in _NAMES]:
    setattr(GivenArray, _name, _refusing(_name))


def _tensor_of(value: Any) -> torch.Tensor | None:
    return value._tensor if type(value) is GivenArray else None


def _from_numpy(original: Callable[..., Any], _: Callable[[], bool]) -> Callable[..., Any]:
    def from_numpy(value: Any) -> Any:
        tensor = _tensor_of(value)
        return original(value) if tensor is None else tensor

    return from_numpy


def _as_tensor(original: Callable[..., Any], _: Callable[[], bool]) -> Callable[..., Any]:
    def as_tensor(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> Any:
        tensor = _tensor_of(data)
        if tensor is None:
            return original(data, dtype=dtype, device=device)
        return tensor.to(device=torch.get_default_device() if device is None else device, dtype=dtype or tensor.dtype)

    return as_tensor


def _tensor(original: Callable[..., Any], _: Callable[[], bool]) -> Callable[..., Any]:
    def tensor(
        data: Any, *args: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **other: Any
    ) -> Any:
        found = _tensor_of(data)
        if found is None:
            return original(data, *args, dtype=dtype, device=device, requires_grad=requires_grad, **other)
        here = torch.get_default_device() if device is None else device
        with torch.no_grad():
            made = found.to(device=here, dtype=dtype or found.dtype, copy=True, memory_format=torch.contiguous_format)
        return made.requires_grad_(requires_grad)

    return tensor


_CONVERSIONS = (
    Shared(torch, "from_numpy", _from_numpy),
    Shared(torch, "as_tensor", _as_tensor),
    Shared(torch, "tensor", _tensor),
)


def arrays_become_tensors() -> contextlib.AbstractContextManager[None]:
    """For a block, torch's functions take what stands for an array."""
    return all_wanted(_CONVERSIONS)
