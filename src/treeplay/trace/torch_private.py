"""The private parts of torch that tracing uses, in one place, each covered by a test that it exists and behaves."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as _module
from torch.optim import optimizer as _optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils.hooks import RemovableHandle


def is_mode_active() -> bool:
    """Whether somebody's dispatch or function mode, or a function transform, is active in this thread.

    `torch.set_default_device("cpu")` is a function mode too, but one that changes nothing on a CPU.
    """
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or (
            torch._C._len_torch_function_stack() > 0
            and not all(map(_is_cpu_default, _get_current_function_mode_stack()))
        )
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _is_cpu_default(mode: object) -> bool:
    return isinstance(mode, DeviceContext) and mode.device.type == "cpu"


_frame_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback


def is_dynamo_watching() -> bool:
    """Whether `torch.compile` would look at each Python function that is called from here."""
    return _frame_callback() is not None


def without_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with `torch.compile` looking away while it runs."""
    from torch._dynamo import disable  # imported already where it is watching

    return cast("Callable[..., Any]", disable(function))


@contextlib.contextmanager
def native_layers() -> Iterator[None]:
    """Layers that take one large operator in evaluation do so although a function mode is active in this thread.

    They ask `has_torch_function`, which says yes to anything under a mode; here it says so only of unusual tensors.
    """
    original, thread = torch.overrides.has_torch_function, threading.get_ident()

    def has_torch_function(args: Iterable[Any]) -> bool:
        if threading.get_ident() == thread:
            args = tuple(item for item in args if type(item) not in _USUAL)
        return bool(args) and original(args)

    torch.overrides.has_torch_function = has_torch_function
    try:
        yield
    finally:
        torch.overrides.has_torch_function = original


_USUAL = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor, type(None))


def is_of_transform(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is what a function transform (`grad`, `vmap`) wraps another in; it ends with the transform."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def version_of(tensor: torch.Tensor) -> int:
    """How often autograd was told that `tensor` changed; 0 where that is not kept (inference tensors)."""
    return 0 if tensor.is_inference() else int(tensor._version)


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Put a version counter back."""
    if not tensor.is_inference() and tensor._version != version:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


register_call_hook = _module.register_module_forward_pre_hook


def hooks_made() -> int:
    """How many hooks of modules, optimizers and tensors this process has made so far."""
    return int(RemovableHandle.next_id)


def global_hook_tables() -> tuple[dict[int, Any], ...]:
    """The tables of hooks that run for every module or every optimizer."""
    return (
        _module._global_forward_pre_hooks,
        _module._global_forward_hooks,
        _module._global_backward_pre_hooks,
        _module._global_backward_hooks,
        _optimizer._global_optimizer_pre_hooks,
        _optimizer._global_optimizer_post_hooks,
    )


@contextlib.contextmanager
def dynamo_off() -> Iterator[None]:
    """Parts of a program that are under torch.compile, or the region around it, run as plain Python for a while."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
    callback = set_eval_frame(None)  # first: a stance may not be set inside of a compiled region
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        set_eval_frame(callback)


def address_of(generator: torch.Generator) -> int:
    """What identifies a generator: operators are given another Python object of the same one."""
    return int(generator._cdata)  # type: ignore[attr-defined]
