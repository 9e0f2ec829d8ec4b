"""The private parts of torch that tracing uses, in one place, each covered by a test that it exists and behaves."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules import module as _module
from torch.optim import optimizer as _optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.hooks import RemovableHandle

from treeplay.device.host.torch_private import native_layers as native_layers
from treeplay.observe.stand_in import ABSENT, stand_in


def as_eager() -> Any:
    """A context in which an operator is not written out in others before autograd sees it, as torch does where it traces."""
    return torch._C._DisablePythonDispatcher()


def is_mode_active() -> bool:
    """Whether a dispatch or function mode, a function transform, or hooks on all saved tensors are active in this thread. The
    hooks want to see what eager saves: `checkpoint` counts on the same in a forward and in its repetition.

    A default device is a function mode too: see `foreign_mode`.
    """
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or _hooks_on_saved_tensors(False) is not None
    )


_hooks_on_saved_tensors = torch._C._autograd._top_saved_tensors_default_hooks


_KEEPING = ("torch.autograd.graph", "torch.utils.checkpoint")


def changes_what_is_saved() -> bool:
    """Whether hooks on all saved tensors are active that may give the backward something else than was saved. Torch's own,
    which offload to the host or compute again, do not."""
    hooks = _hooks_on_saved_tensors(False)
    return hooks is not None and getattr(hooks[0], "__module__", None) not in _KEEPING


def _is_device_alone() -> bool:
    return (
        torch._C._len_torch_function_stack() == 1
        and isinstance(torch._C._get_function_stack_at(0), DeviceContext)
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and _hooks_on_saved_tensors(False) is None
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
    return "hooks on saved tensors" if _hooks_on_saved_tensors(False) is not None else None


def is_traced() -> bool:
    """Whether a program is observed or traced in this thread, by a mode of ours."""
    modes = (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())
    return any(type(mode).__module__.startswith("treeplay.trace.") for mode in modes)


_frame_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback


def is_dynamo_watching() -> bool:
    """Whether `torch.compile` would look at each Python function that is called from here."""
    return _frame_callback() is not None


def without_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with `torch.compile` looking away while it runs."""
    from torch._dynamo import disable  # imported already where it is watching

    return cast("Callable[..., Any]", disable(function))


functions_unwatched: Callable[[], contextlib.AbstractContextManager[None]] = torch._C.DisableTorchFunction
"""A context in which no torch function mode is told of the calls in it."""


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


def is_used_up(node: Any) -> bool:
    """Whether a backward has freed what a graph kept, at an autograd node or at one that it leads to."""
    waiting, seen = [node], set()
    while waiting:
        current = waiting.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        if _is_freed(current):
            return True
        waiting.extend(following for following, _ in current.next_functions)
    return False


def _is_freed(node: Any) -> bool:
    for name in dir(node):
        if name.startswith("_saved_") or name == "saved_tensors":
            try:
                getattr(node, name)
            except RuntimeError:
                return True
    return False


def version_of(tensor: torch.Tensor) -> int:
    """How often autograd was told that `tensor` changed; 0 where that is not kept (inference tensors)."""
    return 0 if tensor.is_inference() else int(tensor._version)


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Put a version counter back."""
    if not tensor.is_inference() and tensor._version != version:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


_AUTOCAST_DEVICES = ("cpu", "cuda")


def autocast_state() -> tuple[Any, ...]:
    """What autocast does in this thread: per kind of device whether it is on and to which dtype it casts; its cache."""
    kinds = ((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST_DEVICES)
    return (*kinds, torch.is_autocast_cache_enabled(), _autocast_nesting())


def _autocast_nesting() -> int:
    nesting = int(torch.autocast_increment_nesting()) - 1
    torch.autocast_decrement_nesting()
    return nesting


def set_autocast_state(state: tuple[Any, ...]) -> None:
    """Put autocast back."""
    *kinds, is_cached, nesting = state
    for kind, (is_enabled, dtype) in zip(_AUTOCAST_DEVICES, kinds, strict=True):
        torch.set_autocast_enabled(kind, is_enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(is_cached)
    for _ in range(_autocast_nesting(), nesting, -1):  # contexts that were entered and not left
        torch.autocast_decrement_nesting()


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


def has_backward_hooks(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether a backward through one of these modules would run a hook of the module's, or one of all modules'."""
    everywhere = (_module._global_backward_pre_hooks, _module._global_backward_hooks)
    own = (table for item in modules for table in (item._backward_pre_hooks, item._backward_hooks))
    return any(everywhere) or any(own)


@contextlib.contextmanager
def autograd_function_arguments(replaced: Callable[[Any], Any]) -> Iterator[None]:
    """For a block and in this thread, `autograd.Function.apply` is given `replaced(arguments)`: no mode is asked for these."""
    original, thread = vars(torch.autograd.Function)["apply"], threading.get_ident()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            args, kwargs = replaced(args), replaced(kwargs)
        return original.__func__(cls, *args, **kwargs)

    stand_in(apply, original)
    owner: Any = torch.autograd.Function
    owner.apply = classmethod(apply)
    try:
        yield
    finally:
        owner.apply = original


@contextlib.contextmanager
def histories_given(check: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """For a block and in this thread, `check(tensor)` is called before a custom function marks a tensor as changed in place
    and so gives it a history. No operator and no mode sees that."""
    owner: Any = torch.autograd.Function
    apply, mark, thread = vars(owner)["apply"], owner.mark_dirty, threading.get_ident()
    modes: list[bool] = []  # of those who called `apply`: inside of a forward gradients are off

    def noting(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return apply.__func__(cls, *args, **kwargs)
        modes.append(torch.is_grad_enabled())
        try:
            return apply.__func__(cls, *args, **kwargs)
        finally:
            modes.pop()

    def checking(ctx: Any, *tensors: Any) -> Any:
        if threading.get_ident() == thread and modes and modes[-1] and any(ctx.needs_input_grad):
            for tensor in tensors:
                check(tensor)
        return mark(ctx, *tensors)

    stand_in(noting, apply)
    stand_in(checking, mark)
    with (
        _replaced(owner, "apply", classmethod(noting)),
        _replaced(torch.autograd.function.FunctionCtx, "mark_dirty", checking),
    ):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


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


class _ModeOff:
    """The innermost mode of torch functions, off the stack for a block."""

    def __enter__(self) -> Any:
        self._mode = torch.overrides._pop_mode()
        return self._mode

    def __exit__(self, *_: object) -> None:
        torch.overrides._push_mode(self._mode)


@contextlib.contextmanager
def plain_functions() -> Iterator[None]:
    """Torch's way from a function to a mode runs none of the standard library: what then runs there is the program's."""
    original = torch.overrides._pop_mode_temporarily

    def pop_mode_temporarily() -> _ModeOff:
        return _ModeOff()

    stand_in(pop_mode_temporarily, original)
    torch.overrides._pop_mode_temporarily = pop_mode_temporarily  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.overrides._pop_mode_temporarily = original


def address_of(generator: torch.Generator) -> int:
    """What identifies a generator: operators are given another Python object of the same one."""
    return int(generator._cdata)  # type: ignore[attr-defined]


@contextlib.contextmanager
def scaled_step_replaced(step: Callable[..., Any], is_meant: Callable[[], bool]) -> Iterator[None]:
    """Where `GradScaler.step` would ask on the host whether an optimizer may step, `step(optimizer, found, args, kwargs)` is
    called instead, with the tensors that hold the answer, if `is_meant()`."""
    original = GradScaler._maybe_opt_step

    def maybe_step(self: Any, optimizer: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if not is_meant():
            return original(self, optimizer, state, *args, **kwargs)
        return step(optimizer, state["found_inf_per_device"].values(), args, kwargs)

    stand_in(maybe_step, original)
    GradScaler._maybe_opt_step = maybe_step  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        GradScaler._maybe_opt_step = original  # type: ignore[method-assign]


@contextlib.contextmanager
def numpy_asks(meet: Callable[..., Any]) -> Iterator[None]:
    """Where a number of NumPy's and a symbolic one meet, `meet(symbol, ufunc, method, *operands)` gives the result; NumPy
    alone would take the symbol for any object, and its own number for one of Python's of another precision."""
    owner: Any = torch.SymFloat
    before = vars(owner).get("__array_ufunc__")

    def asked(*args: Any, **kwargs: Any) -> Any:
        return meet(*args, **kwargs)

    stand_in(asked, ABSENT if before is None else before)
    owner.__array_ufunc__ = asked
    try:
        yield
    finally:
        if before is None:
            del owner.__array_ufunc__
        else:
            owner.__array_ufunc__ = before
