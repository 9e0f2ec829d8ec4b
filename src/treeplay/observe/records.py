"""The newest records of a kind of event (say, one per compile), and where each is sent on the way.

record ─▶ ring: the newest 64, oldest dropped first ─▶ records()
      ├─▶ torch's structured trace log, as plain JSON values
      └─▶ the user's sink, if one is set
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

from treeplay.errors import ArgumentError, ArgumentTypeError
from treeplay.locks import shared_lock
from treeplay.torch_seam.dynamo import trace_structured
from treeplay.values.kinds import is_frozen

_log = logging.getLogger("treeplay.records")
_T = TypeVar("_T")

Sink = Callable[[str, dict[str, Any]], object]
"""Takes a record's log name and its fields as plain JSON values."""

DEFAULT_LIMIT = 64


class RecordRing(Generic[_T]):
    """Keeps the newest frozen records and passes each on. Safe under threads.

    `log_name` begins the name under which a record goes to the structured log; its direction ends it.
    """

    def __init__(self, log_name: str = "treeplay_compile", *, limit: int = DEFAULT_LIMIT) -> None:
        self._log_name = log_name
        self._records: deque[_T] = deque(maxlen=_checked_limit(limit))
        self._lock = shared_lock()  # a finalizer may keep a record while one is being kept
        self._sink: Sink | None = None
        self._has_complained: set[str] = set()

    @property
    def limit(self) -> int:
        """How many records are kept at most. Setting it lower keeps the newest; `ArgumentError` below 1."""
        limit = self._records.maxlen
        return DEFAULT_LIMIT if limit is None else limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._lock:
            self._records = deque(self._records, maxlen=_checked_limit(limit))

    def set_sink(self, sink: Sink | None) -> None:
        """Send every further record to `sink(log name, fields)` too, or to none.

        A sink that raises is logged once and never disturbs the work that made the record.
        """
        self._sink = sink
        self._has_complained.discard("sink")

    def add(self, record: _T, *, direction: str = "forward") -> None:
        """Keep `record`, an instance of a frozen dataclass, and pass it on under `<log name>_<direction>`.

        Raises `ArgumentTypeError` for anything else: a record that can change no longer tells what was.
        """
        if not is_dataclass(record) or isinstance(record, type) or not is_frozen(record):
            kind = type(record).__name__
            raise ArgumentTypeError(f"a record is an instance of a frozen dataclass, got {kind}")
        with self._lock:
            self._records.append(record)
        name = f"{self._log_name}_{direction}"
        self._guarded("structured log", _trace, name, record)
        if (sink := self._sink) is not None:
            self._guarded("sink", lambda: sink(name, plain_fields(record)))

    def records(self) -> list[_T]:
        """The kept records, oldest first, as a list of its own."""
        with self._lock:
            return list(self._records)

    def clear(self) -> None:
        """Forget all records; limit and sink stay."""
        with self._lock:
            self._records.clear()

    def _guarded(self, receiver: str, send: Callable[..., object], *args: object) -> None:
        try:
            send(*args)
        except Exception:
            if receiver not in self._has_complained:
                self._has_complained.add(receiver)
                _log.exception("the %s of records failed; later failures are not reported", receiver)


def plain_fields(record: object) -> dict[str, Any]:
    """The fields of a dataclass instance as values that JSON can hold, sets as sorted lists.

    What JSON has no word for is given by its text.
    """
    if not is_dataclass(record) or isinstance(record, type):
        raise ArgumentTypeError(f"fields are read from a dataclass instance, got {type(record).__name__}")
    return {field.name: _plain(getattr(record, field.name)) for field in fields(record)}


def _plain(value: object) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return plain_fields(value)
    if isinstance(value, (set, frozenset)):
        return [_plain(item) for item in _sorted(value)]
    if isinstance(value, (list, tuple, deque)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)


def _sorted(values: set[Any] | frozenset[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=lambda value: (type(value).__qualname__, repr(value)))


def _trace(name: str, record: object) -> None:
    # A record may be made outside any compile: then there is no trace id, and no cause for a stack dump.
    trace_structured(name, lambda: plain_fields(record), expect_trace_id=False)


def _checked_limit(limit: int) -> int:
    if not isinstance(limit, int) or limit < 1:
        raise ArgumentError(f"a ring keeps at least one record, got limit={limit!r}")
    return limit


compile_records: RecordRing[Any] = RecordRing()
"""The records of this process's compiles."""
records = compile_records.records
