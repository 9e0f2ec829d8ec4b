"""The context of a compilation: fake mode, strides that are asked for, whether a first call computes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext as TracingContext
from torch._guards import tracing as tracing
from torch._subclasses.fake_tensor import FakeTensor


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


def captures_with(values: Sequence[Any]) -> bool:
    """Whether Dynamo captures a graph in this thread with these values: their symbols are those of which it will make guards.
    Nobody makes guards of what is asked of symbols elsewhere."""
    context = TracingContext.try_get()
    if context is None or context.fakify_first_call or context.fake_mode is None:
        return False
    fakes = [value for value in values if isinstance(value, FakeTensor)]
    numbers = [
        value.node.shape_env for value in values if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
    ]
    return all(value.fake_mode is context.fake_mode for value in fakes) and all(
        environment is context.fake_mode.shape_env for environment in numbers
    )
