"""Tracing in one thread while others run modules, trace and compile: none of them notices.

torch keeps what a trace needs in one place for the whole process, where two threads that trace would mix it up:

    a flag that somebody traces     each trace puts back what it found: the flag of two that overlap would be up for ever,
                                    and what `torch.compile` has made raises under it
    methods of `nn.Module`          each trace puts wrappers in their place and takes away those of whoever came last: some
                                    would stay for ever. A trace of operators needs none
    who traces now                  each trace puts back who did before: of two that overlap, one that is over would be left,
                                    and what traces the functions given to an operator (`torch.cond`) would go on with it
    what is noted at the next node  a step backward would be taken for one of the forward, or fail an assertion of torch's

So a trace of operators has a flag and a patcher of its own, and leaves none behind that is over. What sets notes takes turns.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
import torch.fx._symbolic_trace
from torch.fx._symbolic_trace import _Patcher, is_fx_symbolic_tracing

from treeplay.locks import shared_lock
from treeplay.torch_seam.patched import Shared, all_wanted

_CURRENT = "_CURRENT_MAKE_FX_TRACER"
_OF_OPERATORS = "PythonKeyTracer"  # whose module takes a while to import
_MOST_SECONDS_WAITED = 60.0  # much longer than a trace takes: whoever waits for a thread that waits for it goes on


class _PatchesNothing(_Patcher):
    def patch(self, *args: Any, **kwargs: Any) -> None:
        """Leave a global as it is."""

    def patch_method(self, *args: Any, **kwargs: Any) -> None:
        """Leave a method as it is."""


def _tracing(original: Callable[..., Any], is_wanted: Callable[[], bool]) -> Callable[..., Any]:
    plain: Any = inspect.unwrap(original)  # Dynamo, which is not asked where operators are traced, is put around it

    def trace(self: torch.fx.Tracer, *args: Any, **kwargs: Any) -> torch.fx.Graph:
        if not is_wanted() or type(self).__name__ != _OF_OPERATORS:
            return original(self, *args, **kwargs)  # type: ignore[no-any-return]
        names = {**plain.__globals__, "_new_patcher": lambda: contextlib.nullcontext(_PatchesNothing())}
        own = FunctionType(plain.__code__, names, None, plain.__defaults__, plain.__closure__)
        return own(self, *args, **kwargs)  # type: ignore[no-any-return]

    return trace


def _compiling(original: Callable[[], bool], is_wanted: Callable[[], bool]) -> Callable[[], bool]:
    def is_compiling() -> bool:
        if not is_wanted() and sys._getframe(1).f_code is is_fx_symbolic_tracing.__code__:
            return True  # by which torch takes nobody to trace
        return original()

    return is_compiling


_tracers: list[Any] = []  # of those that trace now, and what was there before them
_before: list[Any] = []


def _leaving(original: Callable[..., Any], is_wanted: Callable[[], bool]) -> Callable[..., Any]:
    names = inspect.unwrap(original).__globals__

    @contextlib.contextmanager
    def set_tracer(tracer: Any) -> Iterator[None]:
        if not _tracers:
            _before[:] = [names[_CURRENT]]
        _tracers.append(tracer)
        names[_CURRENT] = tracer
        try:
            yield
        finally:
            _tracers.remove(tracer)
            if names[_CURRENT] is tracer:  # else somebody began later, who is still there or has put back another
                names[_CURRENT] = (_tracers or _before)[-1]

    return set_tracer


_notes = shared_lock()


def _taking_turns(original: Callable[..., Any], is_wanted: Callable[[], bool]) -> Callable[..., Any]:
    @contextlib.contextmanager
    def setting_notes(*args: Any, **kwargs: Any) -> Iterator[Any]:
        is_my_turn = is_wanted() and _notes.acquire(timeout=_MOST_SECONDS_WAITED)
        try:
            with original(*args, **kwargs) as value:
                yield value
        finally:
            if is_my_turn:
                _notes.release()

    return setting_notes


_STAND_INS = (
    Shared(torch.compiler, "is_compiling", _compiling),
    Shared(torch.fx.Tracer, "trace", _tracing),
    Shared("torch.fx.experimental.proxy_tensor", "_set_make_fx_tracer", _leaving),
    Shared("torch.fx.traceback", "preserve_node_meta", _taking_turns),
    Shared("torch.fx.traceback", "set_current_meta", _taking_turns),
    Shared("torch._inductor.pattern_matcher", "preserve_node_meta", _taking_turns),
)


def traced_in_this_thread() -> contextlib.AbstractContextManager[None]:
    """What is traced inside of a block is traced by this thread alone."""
    return all_wanted(_STAND_INS)
