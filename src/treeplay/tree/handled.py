"""Whether a program that runs as it is handles an error by itself.

    try: root = torch.linalg.cholesky(a)                        a replay of this raises where eager goes on
    except torch.linalg.LinAlgError: root = torch.linalg.cholesky(a + jitter)

A recording has the way without an error alone. What its replay raised is neither the program's, which raised nothing to its
caller, nor one of treeplay's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType

from treeplay.observe.lines import failed_call
from treeplay.sandbox.errors_told import errors_told
from treeplay.values.location import Location

_ON_VALUES = (RuntimeError, IndexError, ValueError)
"""What operators, and checks of torch's in Python, raise because of values. Compiled code raises its own in their place."""


class RaisedInside:
    """The line of the first error that was raised on values, and handled since if the program came to its end."""

    def __init__(self) -> None:
        self.is_any = False
        self.where: Location | None = None

    def note(self, error: BaseException, trace: TracebackType) -> None:
        # It comes through a library's functions first, each of which is told.
        if self.where is None and isinstance(error, _ON_VALUES) and not isinstance(error, NotImplementedError):
            self.is_any, self.where = True, failed_call(trace).where


@contextlib.contextmanager
def errors_noted() -> Iterator[RaisedInside]:
    """For a block and in this thread."""
    noted = RaisedInside()
    with errors_told(noted.note):
        yield noted
