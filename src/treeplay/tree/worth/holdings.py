"""What the recordings of all programs hold on the CPU, and which of them go when it is more than it may be.

Above the budget, the recording goes whose calls save least for each byte: never the newest, and never one that is being
launched, whose program's lock another thread has. A key whose recording went runs as it is, and is recorded again once it is
worth more than what would go for it. On a GPU, recordings share scratch memory, and their lane does the same.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache as once
from typing import Any

from treeplay.device.use import SAVED_BY_OPERATOR, bytes_together, dearer
from treeplay.locks import shared_lock
from treeplay.settings import settings
from treeplay.tree.cache import Cache
from treeplay.tree.table import Entry, Recording

_MOST_OF_THE_MACHINE = 4  # a quarter of its memory


@once
def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def limit() -> int:
    """The bytes that recordings on the CPU may hold together."""
    return min(settings.memory_budget_bytes, _machine_bytes() // _MOST_OF_THE_MACHINE)


class Holding:
    """A recording that holds memory, and whose it is; it keeps none of them alive."""

    def __init__(self, recording: Recording, entry: Entry, cache: Cache, lock: Any) -> None:
        self._recording, self._entry, self._cache = weakref.ref(recording), weakref.ref(entry), weakref.ref(cache)
        self._lock = weakref.ref(lock)  # too: its program may be gone
        self.use = entry.use

    @property
    def nbytes(self) -> int:
        """What it holds now: nothing once it was dropped."""
        recording = self._recording()
        return 0 if recording is None or recording.is_dropped else recording.launch().scratch_bytes

    def look(self, now: int) -> int:
        """Note the calls since the last look, after which there have been so many in all; how many there have been now."""
        recording, entry, cache = self._recording(), self._entry(), self._cache()
        if recording is None or entry is None or cache is None:
            return now
        return note_calls(entry, now, warm_calls=cache.warm_calls if cache.last is recording else 0)

    def let_go(self, own: Any) -> None:
        """Drop it, if nobody launches it just now. `own`: the lock of the program that asks for room."""
        recording, entry, cache = self._recording(), self._entry(), self._cache()
        if recording is None or entry is None or cache is None:
            return
        with self.taken(own) as is_idle:
            if is_idle and not recording.is_dropped:
                cache.let_go_for_memory(entry, recording)

    @contextmanager
    def taken(self, own: Any) -> Iterator[bool]:
        """For a block, nobody launches it, if that is so now. `own`: the lock of the program that asks."""
        lock = self._lock()
        if lock is own:
            yield True
        elif lock is None or lock._is_owned() or not lock.acquire(blocking=False):  # this thread may be in a call
            yield False
        else:
            try:
                yield True
            finally:
                lock.release()


def note_calls(entry: Entry, now: int, *, warm_calls: int = 0) -> int:
    """Note an entry's calls since it was last looked at, when there had been so many of all entries; how many there are now."""
    calls = entry.calls + warm_calls
    times, entry.calls_noted = max(0, calls - entry.calls_noted), calls
    entry.use.called(times, now + times)
    return now + times


class Holdings:
    """Of the process. A program's lock is taken before this one's, and others' are not waited for."""

    def __init__(self) -> None:
        self._lock = shared_lock()
        self._held: list[Holding] = []
        self._now = 0  # calls

    def nbytes(self) -> int:
        """What all hold."""
        with self._lock:
            return sum(held.nbytes for held in self._held)

    def hold(self, cache: Cache, lock: Any, entry: Entry, recording: Recording) -> None:
        """Count a new recording, and have others go while there is too much. For a thread that holds its program's lock."""
        launch = recording.launch()
        if launch.device != "cpu" or not launch.scratch_bytes or recording not in entry.recordings:
            return
        with self._lock:
            newest = Holding(recording, entry, cache, lock)
            self._held = [*(held for held in self._held if held.nbytes), newest]
            entry.use.saved = recording.saved or recording.operators * SAVED_BY_OPERATOR
            entry.use.nbytes = newest.nbytes
            if self.nbytes() <= limit():
                return
            self._look()
            for held in sorted(self._held, key=lambda held: held.use.value(self._now)):
                if self.nbytes() <= limit():
                    break
                if held is not newest:
                    held.let_go(lock)

    def admits(self, entry: Entry) -> bool:
        """Whether a key whose recording went is worth another one by now."""
        with self._lock:
            self._now = note_calls(entry, self._now)
            self._look()
            stay = dearer(entry.use, {held.use for held in self._held if held.nbytes}, self._now)
            return not stay or bytes_together([*stay, entry.use]) <= limit()

    def _look(self) -> None:
        for held in self._held:
            self._now = held.look(self._now)


holdings = Holdings()
