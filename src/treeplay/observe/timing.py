"""How long a callable takes, with the device's work included and the random state left alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeVar

import torch

from treeplay.errors import ArgumentError
from treeplay.observe.rng import keep_rng, seed_rng
from treeplay.torch_seam.allocator import has_context

_R = TypeVar("_R")


def time_call(
    fn: Callable[..., _R],
    args: Sequence[Any] = (),
    times: int = 1,
    *,
    kwargs: Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> tuple[_R, float]:
    """Call `fn(*args, **kwargs)` `times` times; the last result and the seconds that all calls took together.

    Garbage is collected before, and every CUDA device in use is drained before the first call and after each:
    work that a call only queued is counted in full. With `seed`, every call starts from that random state.
    The random state outside is untouched either way. Raises `ArgumentError` if `times` is below 1.
    """
    if times < 1:
        raise ArgumentError(f"a call is timed at least once, got times={times!r}")
    kwargs = kwargs or {}
    with keep_rng():
        gc.collect()
        _drain()
        start = perf_counter()
        result = _run(fn, args, kwargs, seed)
        for _ in range(times - 1):
            del result  # so that no call needs memory for two results
            result = _run(fn, args, kwargs, seed)
        return result, perf_counter() - start


def _run(fn: Callable[..., _R], args: Sequence[Any], kwargs: Mapping[str, Any], seed: int | None) -> _R:
    if seed is not None:
        seed_rng(seed)
    result = fn(*args, **kwargs)
    _drain()
    return result


def _drain() -> None:
    """Wait for every CUDA device that this process uses; to ask for another would start it up."""
    if not torch.cuda.is_initialized():
        return
    for index in range(torch.cuda.device_count()):
        if has_context(index):
            torch.cuda.synchronize(index)
