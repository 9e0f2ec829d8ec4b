"""The boundary: the one place between the user and a stage.

    with Boundary("recording a call"):     whatever is raised inside: modes of the thread as they were
        ...                                a reason (`Refusal` and its kin)      comes out as it is
                                           KeyboardInterrupt, SystemExit        come out as they are
                                           any other exception                  comes out as `InternalError`, counted and kept

The caller gives a reason to the user and runs the call as it is. Nothing in a boundary may run the user's code for its
effects: such an exception would be the user's own, and come out with another type.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from treeplay.errors import Explained, InternalError
from treeplay.observe.internal import kept_errors
from treeplay.sandbox.interrupts import interrupts
from treeplay.sandbox.torch_private import ThreadModes

Reasons = tuple[type[BaseException], ...]


class Unmarked:
    """A block that leaves the modes of this thread as they were, if it raises; Ctrl-C breaks it off where that does no harm."""

    def __enter__(self) -> Any:
        self._modes = ThreadModes()
        self._has_handler = interrupts.enter()
        return self

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is not None:
                self._modes.put_back()
        finally:
            if self._has_handler:
                interrupts.leave(is_undisturbed=error is None)


class NoModesLeft(Unmarked):
    """The same around code of the user's that runs for its effects: what it leaves of its own stays, our modes do not."""

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is not None:
                self._modes.put_back_dispatch()
        finally:
            if self._has_handler:
                interrupts.leave(is_undisturbed=False)  # the program may have caught it


class Boundary(Unmarked):
    """The same, and an exception that is neither a reason nor an interrupt comes out as an `InternalError`."""

    def __init__(self, doing: str, *, reasons: Reasons = ()) -> None:
        self._doing = doing
        self._reasons: Reasons = (Explained, *reasons)

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(cls, error, at)
        if isinstance(error, Exception) and not isinstance(error, self._reasons):
            raise internal(error, self._doing) from error


def internal(error: Exception, doing: str) -> InternalError:
    """An exception of ours as what it is, counted and kept; `doing` says what was being done ("recording step")."""
    line = str(error).splitlines()[0] if str(error) else "no message"
    made = InternalError(f"while {doing}: {type(error).__name__}: {line}")
    made.__cause__ = error
    made.text = kept_errors.add(made)
    return made
