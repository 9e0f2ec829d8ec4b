"""The first run of a program: eager, with a log of the operators it ran, so that the trace can be compared with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from treeplay.trace.jit import Call
from treeplay.trace.layouts import answer, question
from treeplay.trace.location import call_site, user_location
from treeplay.trace.log import Entry, result_entry
from treeplay.trace.recurrent import asked_of
from treeplay.trace.tape import content

aten = torch.ops.aten
_UNLOGGED = frozenset({aten._local_scalar_dense.default, aten.detach.default})
_LIFTS = frozenset({aten.lift_fresh.default, aten.lift.default})


class Observer(TorchDispatchMode):
    """Runs every operator as it is and notes its name, the user's line and the numbers it was given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log: list[Entry] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _UNLOGGED and func.namespace != "profiler":
            where = user_location()
            if func in _LIFTS:
                self.log.append(Entry("constant", where, content(args[0]), call_site()))
            entry = Entry.of(func, where, args, kwargs, call_site())
            asked = question(func, asked_of(func, args), kwargs)
            self.log.append(entry)
            position = len(self.log) - 1
            out = func(*args, **kwargs)
            if asked is not None:
                self.log[position] = replace(entry, layout=(asked, answer(out)))
            return out
        return func(*args, **kwargs)


def observe(program: Callable[..., Any], call: Call) -> tuple[Any, list[Entry]]:
    """Run `program` eagerly: its result, and the log, which ends with the plain values that it returned."""
    observer = Observer()
    with torch.autograd.set_multithreading_enabled(False), observer:  # the mode belongs to this thread
        result = program(*call.args, **call.kwargs)
    observer.log.append(result_entry(result))
    return result, observer.log
