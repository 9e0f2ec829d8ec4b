"""Errors of treeplay's own: counted, kept with their tracebacks, told once. The calls they came in run as they are."""

from __future__ import annotations

import traceback
from collections import deque

from treeplay.errors import InternalError
from treeplay.locks import shared_lock
from treeplay.observe.counters import counters
from treeplay.observe.once import warn_once

KEPT_ERRORS = 32
"""How many errors are kept, the latest."""


class InternalErrors:
    """The latest errors of treeplay's own, as text: an exception itself would keep alive what its frames hold."""

    def __init__(self) -> None:
        self._lock = shared_lock()
        self._texts: deque[str] = deque(maxlen=KEPT_ERRORS)

    def add(self, error: InternalError) -> str:
        """Count and keep an error; gives its text, traceback and all."""
        cause = error.__cause__ or error
        text = "".join(traceback.format_exception(error)).rstrip()
        counters.add("internal errors", type(cause).__name__)
        with self._lock:
            self._texts.append(text)
        return text

    def texts(self) -> tuple[str, ...]:
        """The kept errors, the oldest first."""
        with self._lock:
            return tuple(self._texts)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._texts.clear()


kept_errors = InternalErrors()


def internal_errors() -> tuple[str, ...]:
    """The latest errors of treeplay's own, with their tracebacks: what to report. The oldest comes first."""
    return kept_errors.texts()


def tell_internal(error: InternalError, name: str) -> None:
    """Warn once that `name` runs as it is because of an error of treeplay's own."""
    line = str(error).splitlines()[0]
    warn_once(
        f"treeplay runs {name} as it is, because of an error of its own: {line}. Please report it with its traceback, "
        "which treeplay.observe.internal_errors() gives"
    )
