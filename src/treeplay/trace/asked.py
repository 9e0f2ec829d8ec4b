"""What a program asks while it is traced: a second run gives it the answers of the first.

What it reads on the host is made of constants alone, and is the same in each run.

Transformers reads masks on the host unless a tensor is a fake. What the trace computes is, and so the program takes the way
without reads. In a second run, what is computed are tensors that hold fakes: to them, the answer is the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from treeplay.torch_seam.fakes import is_without_data
from treeplay.torch_seam.modes import TorchDispatchMode
from treeplay.torch_seam.patched import Shared, all_wanted


def _fakes_too(original: Callable[[Any], bool], value: Callable[[], Any]) -> Callable[[Any], bool]:
    def is_fake(tensor: Any) -> bool:
        is_input = value()
        return original(tensor) if is_input is None else is_without_data(tensor) and not is_input(tensor)

    return is_fake


_ASKS = (Shared("transformers.utils.import_utils", "is_fake_tensor", _fakes_too),)
"""Functions of libraries that tell whether a tensor is a fake."""


def answered_as_in_the_trace(is_input: Callable[[Any], bool]) -> contextlib.AbstractContextManager[None]:
    """For a block, whatever the program computes in this thread is a fake to libraries that ask; its inputs are not."""
    return all_wanted(_ASKS, is_input)


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
