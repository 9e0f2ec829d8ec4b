"""What is around a call in this thread: modes of functions and of dispatch, function transforms, a default device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _python_dispatch as dispatch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass

from treeplay.torch_seam.autograd import saving_hooks, take_hooks_off
from treeplay.torch_seam.patched import Shared
from treeplay.values.kinds import module_of

DisableTorchFunctionSubclass: Any = torch._C.DisableTorchFunctionSubclass
"""A context in which `__torch_function__` of tensor subclasses is not called."""
DisableTorchFunction: Any = torch._C.DisableTorchFunction
"""The same, and no function mode is called either."""
innermost_transform: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack

# By names of their own, since each call asks: looking them up takes longer than they do.
_dispatch_modes_around = torch._C._len_torch_dispatch_stack
function_modes_around = torch._C._len_torch_function_stack

_c: Any = torch._C  # of which some functions are told to no type checker

_FLAGS = ("_set_fwd_grad_enabled", "_set_view_replay_enabled")

_OF_MODES = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)

_FOR_DYNAMO = "set_is_in_mode_without_ignore_compile_internals"  # tells its guards, which are C++


class ThreadModes:
    """The modes of this thread, as they were. `put_back` sets them again, after contexts that were never left."""

    def __init__(self) -> None:
        self._keys = _keys()
        self._dispatch = _dispatch_modes()
        self._functions = torch.overrides._get_current_function_mode_stack()
        self._of_modes = _flags_of_modes()
        self._grad_mode = torch.is_grad_enabled()
        self._flags = [(getattr(torch._C, name), _getter(name)()) for name in _FLAGS]
        self._multithreading = torch._C._is_multithreading_enabled()
        self._function_state = _c._get_torch_function_state()
        self._transforms = _transforms()
        self._hooks = saving_hooks(True)

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
        # `True`: also hooks that torch passes over while it traces.
        if saving_hooks(True) is not self._hooks and self._hooks is None:
            while saving_hooks(True) is not None:
                take_hooks_off()
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
            _set_flags_of_modes(self._of_modes)
        torch._C._set_multithreading_enabled(self._multithreading)


@contextlib.contextmanager
def flags_of_modes_kept() -> Iterator[None]:
    """For a block in which a dispatch mode is left before one that was entered after it: each puts back what it found."""
    flags = _flags_of_modes()
    try:
        yield
    finally:
        _set_flags_of_modes(flags)


def _flags_of_modes() -> list[tuple[str, bool]]:
    return [(name, getattr(dispatch, name)) for name in _OF_MODES if hasattr(dispatch, name)]


def _set_flags_of_modes(flags: list[tuple[str, bool]]) -> None:
    for name, flag in flags:
        setattr(dispatch, name, flag)
        if name == _OF_MODES[-1] and hasattr(dispatch, _FOR_DYNAMO):
            getattr(dispatch, _FOR_DYNAMO)(flag)


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


def is_mode_active() -> bool:
    """Whether a dispatch or function mode, a function transform, or hooks on all saved tensors are active in this thread. The
    hooks want to see what eager saves: `checkpoint` counts on the same in a forward and in its repetition.

    A default device is a function mode too: see `foreign_mode`.
    """
    return (
        _dispatch_modes_around() > 0
        or function_modes_around() > 0
        or innermost_transform() is not None
        or saving_hooks(False) is not None
    )


def _is_device_alone() -> bool:
    return (
        torch._C._len_torch_function_stack() == 1
        and isinstance(torch._C._get_function_stack_at(0), DeviceContext)
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and saving_hooks(False) is None
    )


def foreign_mode() -> str | None:
    """What of somebody else's is around a call that wants to see the program's own operators; None if there is nothing but a
    default device."""
    if _is_device_alone():  # the quick way: programs are called under a default device, for good
        return None
    found = [mode for mode in _get_current_function_mode_stack() if not isinstance(mode, DeviceContext)]
    found += _get_current_dispatch_mode_stack()
    if found:
        return f"the mode {type(found[-1]).__name__}"
    transform = torch._C._functorch.peek_interpreter_stack()
    if transform is not None:
        return f"the function transform {str(transform.key()).rpartition('.')[2].lower()}"
    return "hooks on saved tensors" if saving_hooks(False) is not None else None


def is_traced() -> bool:
    """Whether a program is observed or traced in this thread, by a mode of ours."""
    modes = (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())
    return any(module_of(type(mode)).startswith("treeplay.trace.") for mode in modes)


def as_eager() -> Any:
    """A context in which an operator is not written out in others before autograd sees it, as torch does where it traces."""
    return torch._C._DisablePythonDispatcher()


def is_dispatched() -> bool:
    """Whether a dispatch mode is told of this thread's operators, such as one that runs them without data."""
    return torch._C._len_torch_dispatch_stack() > 0 and not torch._C._dispatch_tls_is_dispatch_key_excluded(
        torch._C.DispatchKey.Python  # as `no_dispatch` does, which leaves the modes on the stack
    )


@contextlib.contextmanager
def without_function_modes() -> Iterator[None]:
    """No torch function mode for a block, a default device included: what is made there is made where the code says."""
    modes = [torch.overrides._pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch.overrides._push_mode(mode)


def is_of_transform(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is what a function transform (`grad`, `vmap`) wraps another in; it ends with the transform."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


class _ModeOff:
    """The innermost mode of torch functions, off the stack for a block."""

    def __enter__(self) -> Any:
        self._mode = torch.overrides._pop_mode()
        return self._mode

    def __exit__(self, *_: object) -> None:
        torch.overrides._push_mode(self._mode)


def _popping_plainly(original: Any, value: Callable[[], Any]) -> Any:
    def pop_mode_temporarily() -> _ModeOff:
        return _ModeOff()

    return pop_mode_temporarily


plain_functions = Shared(torch.overrides, "_pop_mode_temporarily", _popping_plainly).wanted
"""Torch's way from a function to a mode runs none of the standard library: what then runs there is the program's."""


def is_innermost_mode(mode: object) -> bool:
    """Whether `mode` is the dispatch mode that was entered last in this thread."""
    depth = torch._C._len_torch_dispatch_stack()
    return depth > 0 and torch._C._get_dispatch_stack_at(depth - 1) is mode


def _has_torch_function(original: Any, is_wanted: Callable[[], bool]) -> Any:
    def has_torch_function(args: Iterable[Any]) -> bool:
        if is_wanted():
            args = tuple(item for item in args if type(item) not in _USUAL and not has_plain_class(item))
        return bool(args) and bool(original(args))

    return has_torch_function


_USUAL = (torch.Tensor, torch.nn.Parameter, FakeTensor, type(None))
_NO_FUNCTIONS: Any = torch._C._disabled_torch_function_impl

native_layers = Shared(torch.overrides, "has_torch_function", _has_torch_function).wanted
"""A context in which layers that take one large operator in evaluation do so although a function mode is active in this
thread. They ask `has_torch_function`, which says yes to anything under a mode; here it says so only of unusual tensors."""

_CPU = torch.device("cpu")


def default_device() -> torch.device | None:
    """Where tensors are made for which a program names no device; None for the CPU."""
    for at in range(torch._C._len_torch_function_stack() - 1, -1, -1):
        mode = torch._C._get_function_stack_at(at)
        if isinstance(mode, DeviceContext):
            device: torch.device = mode.device
            return None if device == _CPU else device
    return None


is_transformed = torch._C._are_functorch_transforms_active


def without_dispatch_modes() -> contextlib.AbstractContextManager[Any]:
    """While this lasts, no dispatch mode sees what runs."""
    return _disable_current_modes()


def has_plain_class(value: Any) -> bool:
    """Whether operators take a value as a `torch.Tensor`: its class, as a parameter's, hooks neither functions nor dispatch."""
    cls, of_dispatch = type(value), torch.Tensor.__torch_dispatch__
    if cls is torch.Tensor or not issubclass(cls, torch.Tensor):
        return cls is torch.Tensor
    return cls.__torch_function__ is _NO_FUNCTIONS and cls.__torch_dispatch__ is of_dispatch


def is_untraced(value: Any) -> bool:
    """Whether a tensor is a plain one with memory, and nothing that a tracer or a function transform computes with."""
    return has_plain_class(value) and not is_of_transform(value) and not torch._is_functional_tensor(value)


def is_wrapper(value: Any) -> bool:
    """Whether a tensor is a subclass made of inner tensors."""
    return isinstance(value, torch.Tensor) and bool(is_traceable_wrapper_subclass(value))
