"""How long a graph takes: told of one that is explained, by a few runs over copies of what its first call is given.

    first call ─ copies of the arguments ─▶ run, run, run: the least time ─▶ account.seconds_a_call
               └ the arguments ─▶ the graph as it is called

The runs leave no mark: they write to copies, and random states are put back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from treeplay.backend.account import Account
from treeplay.observe.rng import keep_rng
from treeplay.torch_seam.tensors import unusual
from treeplay.trace.signature.returned import whole
from treeplay.values.boxed import Boxed

_RUNS = 3  # after one that warms up


def timed_at_first(call: Boxed, run: Boxed, account: Account) -> Boxed:
    """`call`, which in its first call notes in `account` how long `run`, the graph as it is compiled, takes."""

    def first(args: list[Any]) -> Sequence[Any]:
        if account.seconds_a_call is None and all(map(_can_be_copied, args)):
            account.seconds_a_call = _least_seconds(run, args)
        return call(args)

    return first


def _can_be_copied(value: Any) -> bool:
    is_number = value is None or isinstance(value, (int, float))
    return is_number or (isinstance(value, torch.Tensor) and unusual(value) is None)


def _least_seconds(run: Boxed, args: Sequence[Any]) -> float:
    device = next((arg.device for arg in args if isinstance(arg, torch.Tensor) and arg.is_cuda), None)
    with keep_rng():
        return min([_seconds(run, args, device) for _ in range(1 + _RUNS)][1:])


def _seconds(run: Boxed, args: Sequence[Any], device: torch.device | None) -> float:
    copies = [_copy(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    if device is None:
        start = time.perf_counter()
        run(copies)
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run(copies)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies in its memory as the tensor does in its own."""
    return whole(tensor).clone().as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
