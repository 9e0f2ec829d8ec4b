"""What torch keeps for each thread and a stage may change: modes that are active, and the flags of autograd and dispatch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch

_c: Any = torch._C  # of which some functions are told to no type checker
_FLAGS = ("_set_fwd_grad_enabled", "_set_view_replay_enabled")
_OF_MODES = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)


class ThreadModes:
    """The modes of this thread, as they were. `put_back` sets them again, after contexts that were never left."""

    def __init__(self) -> None:
        self._keys = _keys()
        self._dispatch = _dispatch_modes()
        self._functions = torch.overrides._get_current_function_mode_stack()
        self._of_modes = [(name, getattr(dispatch, name)) for name in _OF_MODES if hasattr(dispatch, name)]
        self._grad_mode = torch.is_grad_enabled()
        self._flags = [(getattr(torch._C, name), _getter(name)()) for name in _FLAGS]
        self._multithreading = torch._C._is_multithreading_enabled()
        self._function_state = _c._get_torch_function_state()
        self._transforms = _transforms()
        self._hooks = _hooks_on_saved_tensors()

    def put_back(self) -> None:
        """Take off what was put on top since, and put back what was taken away."""
        while _transforms() > self._transforms:
            torch._C._functorch.pop_dynamic_layer_stack()
        self.put_back_dispatch()
        functions = torch.overrides._get_current_function_mode_stack()
        if not _are_the_same(functions, self._functions):
            while torch._C._len_torch_function_stack():
                torch.overrides._pop_mode()
            for mode in self._functions:
                torch.overrides._push_mode(mode)
        if _hooks_on_saved_tensors() is not self._hooks and self._hooks is None:
            while _hooks_on_saved_tensors() is not None:
                torch._C._autograd._pop_saved_tensors_default_hooks()
        _c._set_torch_function_state(self._function_state)
        for set_flag, value in self._flags:
            set_flag(value)
        torch._C._set_grad_enabled(self._grad_mode)
        if str(_keys()) != str(self._keys):
            _set_keys(*self._keys)

    def put_back_dispatch(self) -> None:
        """The same for dispatch modes, and for how backwards use threads, alone."""
        if not _are_the_same(_dispatch_modes(), self._dispatch):
            while torch._C._len_torch_dispatch_stack():
                dispatch._pop_mode()
            for mode in self._dispatch:
                dispatch._push_mode(mode)
            for name, flag in self._of_modes:
                setattr(dispatch, name, flag)
        torch._C._set_multithreading_enabled(self._multithreading)


def _keys() -> tuple[Any, Any]:
    """What this thread includes in each dispatch, and what it leaves out."""
    return torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()


_never_left: list[Any] = []


def _set_keys(included: Any, excluded: Any) -> None:
    # torch sets both for a block only: this one has no end.
    guard = torch._C._ForceDispatchKeyGuard(included, excluded)
    guard.__enter__()
    _never_left.append(guard)


def _dispatch_modes() -> list[Any]:
    return [torch._C._get_dispatch_stack_at(at) for at in range(torch._C._len_torch_dispatch_stack())]


def _are_the_same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def _getter(setter: str) -> Any:
    return getattr(torch._C, setter.replace("_set_", "_is_"))


def _transforms() -> int:
    """How many function transforms (`grad`, `vmap`) are around."""
    stack = torch._C._functorch.get_interpreter_stack()
    return len(stack) if stack is not None else 0


def _hooks_on_saved_tensors() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)
