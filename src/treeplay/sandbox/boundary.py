"""The boundary: the one place between the user and a stage.

    with Boundary("recording a call"):     whatever is raised inside: modes of the thread as they were
        ...                                a reason (`Refusal` and its kin)      comes out as it is
                                           KeyboardInterrupt, SystemExit        come out as they are
                                           any other exception                  comes out as `InternalError`, counted and kept

The caller gives a reason to the user and runs the call as it is. Code of the user's that a stage calls on purpose (a compiler
of their own, a function that is warmed up) stands in `users_own()`: what it raises is the user's, and comes out as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from treeplay.errors import Explained, InternalError
from treeplay.observe.internal import kept_errors
from treeplay.sandbox.interrupts import interrupts
from treeplay.sandbox.signal_handlers import was_raised_by_handler
from treeplay.torch_seam.modes import ThreadModes

_MARK = "_treeplay_users_own"
Reasons = tuple[type[BaseException], ...]


class UninterruptedBlock:
    """A block around contexts of ours, with code of the user's in them: Ctrl-C leaves none of these half entered or left."""

    def __enter__(self) -> None:
        self._has_handler = interrupts.enter()

    def __exit__(self, *_: object) -> None:
        if self._has_handler:
            interrupts.leave(is_undisturbed=False)


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
        if isinstance(error, Exception) and not self._passes(error):
            raise internal(error, self._doing) from error

    def _passes(self, error: Exception) -> bool:
        is_reason = isinstance(error, self._reasons) and not isinstance(error, InternalError)
        return is_reason or is_users_own(error)


def is_users_own(error: BaseException) -> bool:
    """Whether code of the user's raised an exception that ends the call, such as the handler of a signal."""
    return getattr(error, _MARK, False) or was_raised_by_handler(error)


@contextmanager
def users_own() -> Iterator[None]:
    """Code of the user's that a stage calls: boundaries let its exceptions pass."""
    try:
        yield
    except Exception as error:
        mark_users_own(error)
        raise


def mark_users_own(error: BaseException) -> None:
    """Have boundaries let an exception pass."""
    with suppress(AttributeError):  # of a class without attributes
        setattr(error, _MARK, True)


def internal(error: Exception, doing: str) -> InternalError:
    """An exception of ours as what it is, counted and kept; `doing` says what was being done ("recording step")."""
    line = str(error).splitlines()[0] if str(error) else "no message"
    made = InternalError(f"while {doing}: {type(error).__name__}: {line}")
    made.__cause__ = error  # for the text, which is made before it is raised
    made.text = kept_errors.add(made)
    return made
