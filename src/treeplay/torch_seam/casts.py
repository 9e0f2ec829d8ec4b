"""Autocast between an operator and those that its kernel calls, below a dispatch mode.

    torch.linalg.pinv(x)  ─▶  linalg_pinv.atol_rtol_tensor, autocast on  ─▶ mode ─▶ kernel ─▶ matmul    of casts
    torch.pinverse(x)     ─▶  the same, which the cast of the whole switched off  ─▶ kernel ─▶ matmul

Below a mode autocast is off, and torch keeps no more than how it was where Python called torch. How it is where the operator is
reached, after those that called it, tells a kernel that stands at autocast's own place: torch comes by where it is on.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from treeplay.locks import shared_lock

_NAMES = (
    "_trilinear",
    "linalg_pinv",
    "affine_grid_generator",
    "_transformer_encoder_layer_fwd",
    "_native_multi_head_attention",
)
"""Operators whose kernels call others that autocast casts."""
CASTS = (torch._C.DispatchKey.AutocastCPU, torch._C.DispatchKey.AutocastCUDA)
OTHERS = torch._C.DispatchKey.CompositeImplicitAutograd
"""Where an operator has its kernel that computes with others alone."""
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_noting = shared_lock()


class _Inside(threading.local):
    """Operators that this thread is inside of, and the keys under which their kernels would call others."""

    def __init__(self) -> None:
        self.operators: list[tuple[OpOverload, tuple[Any, ...]]] = []


_here = _Inside()
_library = torch.library.Library("aten", "IMPL")


def note_casts() -> None:
    """Have it noted from now on. To be asked before a mode begins that wants to know.

    It stays: another thread may be in such a kernel at any time."""
    with _noting:
        _register()


@functools.cache
def _register() -> None:
    for name in _NAMES:
        packet = getattr(torch.ops.aten, name)
        for op in (getattr(packet, overload) for overload in packet.overloads()):
            if has_kernel(op.name(), OTHERS):  # never reached: those that it calls are
                continue
            for key in CASTS:
                if not has_kernel(op.name(), key):  # else it is cast as a whole
                    _library.impl(op, _noted(op, key), key.name, with_keyset=True)


def _noted(op: OpOverload, key: Any) -> Callable[..., Any]:
    below = torch._C._dispatch_keyset_full_after(key)
    by_python = torch._C.DispatchKeySet(torch._C.DispatchKey.PythonDispatcher)  # which a trace has choose kernels

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        excluded = torch._C._dispatch_tls_local_exclude_set()
        _here.operators.append((op, tuple(cast for cast in CASTS if not excluded.has(cast))))
        try:
            return op.redispatch(keys & (below | by_python), *args, **kwargs)
        finally:
            _here.operators.pop()

    return kernel


def is_cast_inside(op: Any) -> bool:
    """Whether autocast is on between an operator and those that its kernel calls. For code of a dispatch mode, below which it
    is off: there the kernel would do otherwise than where no mode is."""
    return bool(casts_inside(op))


def casts_inside(op: Any) -> Sequence[Any]:
    """The dispatch keys of autocast that are on inside of an operator which has been reached."""
    inside = _here.operators
    return inside[-1][1] if inside and inside[-1][0] is op else ()


def as_unwatched(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the kernel of an operator gives with autocast on inside of it. For code of a dispatch mode."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in casts_inside(op):
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        return op(*args, **kwargs)
