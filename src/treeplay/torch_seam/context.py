"""The context of a compilation: fake mode, strides that are asked for, whether a first call computes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch._guards import TracingContext as TracingContext
from torch._guards import tracing as tracing


def strides_asked_for() -> list[Any] | None:
    """Where whoever compiles wants the strides of each result to be put; None: nobody asks."""
    context = TracingContext.try_get()
    return context.output_strides if context is not None else None


def keep_tracing_context() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """What enters the tracing context of this moment again, later."""
    context = TracingContext.try_get()
    return (lambda: tracing(context)) if context is not None else contextlib.nullcontext


def wants_fakes_first() -> bool:
    """Whether whoever traces this function asks for a first call that computes nothing."""
    context = TracingContext.try_get()
    return context is not None and bool(context.fakify_first_call)
