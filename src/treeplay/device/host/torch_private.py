"""The private parts of torch that the host device uses, in one place, each with a test that it exists and behaves."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from treeplay.observe.stand_in import Shared

DisableTorchFunction: Any = torch._C.DisableTorchFunction
"""Function modes and `__torch_function__` look away inside of this context."""

DisableAutocast: Any = torch._C._DisableAutocast
"""Operators inside of this context get the dtypes they are given."""


def storage_of(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage while it is alive."""
    return int(tensor.untyped_storage()._cdata)


def uses_of_storage(tensor: torch.Tensor) -> int:
    """How many tensors hold the storage of `tensor`, itself included."""
    storage = tensor.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1  # this handle


def address_of(generator: torch.Generator) -> int:
    """What identifies a generator: operators are given another Python object of the same one."""
    return int(generator._cdata)  # type: ignore[attr-defined]


def is_innermost_mode(mode: object) -> bool:
    """Whether `mode` is the dispatch mode that was entered last in this thread."""
    depth = torch._C._len_torch_dispatch_stack()
    return depth > 0 and torch._C._get_dispatch_stack_at(depth - 1) is mode


def is_dispatched() -> bool:
    """Whether a dispatch mode is active in this thread, such as one that runs operators without data."""
    return torch._C._len_torch_dispatch_stack() > 0


def _leaving_states(original: Any, is_wanted: Callable[[], bool]) -> Any:
    def preserve_rng_state() -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if is_wanted() else original()

    return preserve_rng_state


_PRESERVING = ("torch._dynamo.utils", "torch._functorch.aot_autograd")
_preserving: dict[str, Shared] = {}


@contextlib.contextmanager
def random_states_left_alone() -> Iterator[None]:
    """In this thread, torch does not put default generators back when it has traced or compiled for the length of a block: it
    would put back what other threads drew meanwhile."""
    with contextlib.ExitStack() as stack:
        for name in _PRESERVING:
            if name not in _preserving and name in sys.modules:
                _preserving[name] = Shared(sys.modules[name], "preserve_rng_state", _leaving_states)
            if name in _preserving:
                stack.enter_context(_preserving[name].wanted())
        yield


def _has_torch_function(original: Any, is_wanted: Callable[[], bool]) -> Any:
    def has_torch_function(args: Iterable[Any]) -> bool:
        if is_wanted():
            args = tuple(item for item in args if type(item) not in _USUAL)
        return bool(args) and bool(original(args))

    return has_torch_function


native_layers = Shared(torch.overrides, "has_torch_function", _has_torch_function).wanted
"""A context in which layers that take one large operator in evaluation do so although a function mode is active in this
thread. They ask `has_torch_function`, which says yes to anything under a mode; here it says so only of unusual tensors."""


_USUAL = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor, type(None))
