"""Whether a program that runs as it is handles an error by itself.

    try: root = torch.linalg.cholesky(a)                        a replay of this raises where eager goes on
    except torch.linalg.LinAlgError: root = torch.linalg.cholesky(a + jitter)

A recording has the way without an error alone. What its replay raised is neither the program's, which raised nothing to its
caller, nor one of treeplay's own.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from treeplay.observe.lines import failed_call
from treeplay.values.location import Location

_ON_VALUES = (RuntimeError, IndexError, ValueError)
"""What operators, and checks of torch's in Python, raise because of values. Compiled code raises its own in their place."""


class RaisedInside:
    """The line of the first error that was raised on values, and handled since if the program came to its end."""

    def __init__(self) -> None:
        self.is_any = False
        self.where: Location | None = None

    def note(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Told by the interpreter of each function that is called, and of what is raised in it."""
        frame.f_trace_lines = False
        # It comes through a library's functions first, each of which is told.
        if event == "exception" and self.where is None:
            kind, _, trace = arg
            if issubclass(kind, _ON_VALUES) and not issubclass(kind, NotImplementedError):
                self.is_any, self.where = True, failed_call(trace).where
        return self.note


@contextlib.contextmanager
def errors_noted() -> Iterator[RaisedInside]:
    """For a block and in this thread. Nothing is noted where a debugger is told already."""
    noted = RaisedInside()
    if sys.gettrace() is not None:
        yield noted
        return
    tracer = noted.note
    sys.settrace(tracer)
    try:
        yield noted
    finally:
        if sys.gettrace() is tracer:  # else the program has installed its own, or taken ours away
            sys.settrace(None)
