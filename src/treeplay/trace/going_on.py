"""A trace that goes on behind a refusal, to find what else is in the way: for `treeplay check`, which records nothing.

    eager run ── EagerReads: what each read of a tensor gave Python ──▶ GoingOn: a trace whose refused reads give the same

So the trace takes the way that the eager run took, to its end or to a refusal that nothing is known behind.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from treeplay.errors import Refusal
from treeplay.observe.lines import user_location
from treeplay.trace.log import LoggedCall
from treeplay.trace.run.gradients import Gradients
from treeplay.trace.run.tracer import Tracer
from treeplay.trace.run.watch import READS_ON_THE_HOST, WatchFunctions
from treeplay.values.kinds import module_of
from treeplay.values.location import Location

_TENSOR = torch.Tensor
_NUMBERS = {getattr(_TENSOR, name) for name in ("item", "__float__", "__bool__", "__int__", "__index__", "__complex__")}
_KNOWN = READS_ON_THE_HOST | _NUMBERS
_PLAIN = (bool, int, float, complex, str, list)


class EagerReads(TorchFunctionMode):
    """Around an eager run: what its reads of tensors gave, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: deque[tuple[Any, Any]] = deque()
        self.log: list[LoggedCall] = []  # of that run, once it is over

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _KNOWN and (isinstance(result, _PLAIN) or module_of(type(result)) == "numpy"):
            what = func, user_location()
            self.answers.append((what, copy.deepcopy(result)))  # an array is the tensor's own memory
        return result


class GoingOn(WatchFunctions):
    """Beside a tracer whose refusals are collected."""

    def __init__(self, tracer: Tracer, gradients: Gradients, reads: EagerReads) -> None:
        super().__init__(tracer, gradients)
        self._answers = deque(reads.answers)  # each trace begins at the first
        self.first_run = reads.log

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().__torch_function__(func, types, args, kwargs)
        except Refusal:
            what = func, user_location()
            if func is _TENSOR.item:
                self._take_apart(what[1])
            # Reads that are not refused (those of an optimizer's counters) have answers that nobody needs.
            while self._answers and self._answers[0][0] != what:
                self._answers.popleft()
            if func not in _KNOWN or not self._answers:
                raise
            return self._answers.popleft()[1]

    def _take_apart(self, where: Location | None) -> None:
        """A fake asks for its items one by one where a tensor gives a list of them."""
        if self._answers and self._answers[0][0] == (_TENSOR.tolist, where):
            _, values = self._answers.popleft()
            self._answers.extendleft(((_TENSOR.item, where), value) for value in [*_flat(values)][::-1])


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value
