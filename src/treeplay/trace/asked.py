"""What a program asks while it is traced: a second run gives it the answers of the first.

What it reads on the host is made of constants alone, and is the same in each run.

Transformers reads masks and tokens on the host unless it is traced, which it tells by asking whether a tensor is a fake. To it,
all tensors are while a program is traced, also those that are given: it takes the way without reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.torch_seam.modes import TorchDispatchMode
from treeplay.torch_seam.patched import Shared, all_wanted
from treeplay.trace.training.averages import UPDATES_OF_AVERAGES


def _fakes_too(original: Callable[[Any], bool], value: Callable[[], Any]) -> Callable[[Any], bool]:
    def is_fake(tensor: Any) -> bool:
        return isinstance(tensor, torch.Tensor) if value() else original(tensor)

    return is_fake


_ASKS = (Shared("transformers.utils.import_utils", "is_fake_tensor", _fakes_too), UPDATES_OF_AVERAGES)
"""Functions of libraries that read on the host, unless they are told that a program is traced."""


def told_of_the_trace() -> contextlib.AbstractContextManager[None]:
    """For a block, such functions know in this thread that a program is traced."""
    return all_wanted(_ASKS)


class ReadsAsInTheTrace(TorchDispatchMode):
    """For a block in which the program runs once more, the operators that read on the host give what they gave."""

    def __init__(self, host_reads: Sequence[tuple[Any, Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._answers = iter(host_reads)
        self._readers = {func for func, _ in host_reads}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._readers:
            asked, answer = next(self._answers, (None, None))
            if asked is func:
                return answer
        return func(*args, **(kwargs or {}))
