"""Functions that keep their results (`functools.lru_cache`): what they keep of a trace is not there for later calls.

A trace that misses such a cache fills it with tensors that have no data. No survey sees into one, so nothing puts it back: the
program would be given these tensors from then on, in calls that run as they are too.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import torch

from treeplay.values.kinds import is_a

_CACHING = type(functools.lru_cache(len))
_DEEPEST = 4  # tensors in the containers and objects of a result


def forget_cached(is_of_trace: Callable[[torch.Tensor], bool]) -> bool:
    """Have each function that keeps a tensor of a trace forget it. Whether there was one."""
    is_any = False
    # All of them: a library's function is called by code that no survey reads.
    for function in [value for value in gc.get_objects() if type(value) is _CACHING]:
        kept = [value for value in gc.get_referents(function) if not callable(value)]
        if not any(_holds(value, is_of_trace, _DEEPEST) for value in kept):
            continue
        is_any = True
        if function.cache_parameters()["maxsize"] is not None:
            # Its entries are linked outside of Python, and none can be taken out alone. It may drop any of them by itself.
            function.cache_clear()
            continue
        for entries in kept:
            # One of these dictionaries has the function's attributes.
            if isinstance(entries, dict) and entries is not vars(function):
                for key in [key for key, value in [*entries.items()] if _holds(value, is_of_trace, _DEEPEST)]:
                    entries.pop(key, None)
    return is_any


def _holds(value: Any, is_of_trace: Callable[[torch.Tensor], bool], depth: int) -> bool:
    if is_a(value, torch.Tensor):
        return is_of_trace(value)
    if not depth or is_a(value, torch.nn.Module) or callable(value):
        return False
    return any(_holds(part, is_of_trace, depth - 1) for part in gc.get_referents(value))
