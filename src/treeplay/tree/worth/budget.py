"""What keeps a program that gains nothing from costing more than eager does.

budget   the first keys of a program are recorded as they come; after them, observing and recording take at most
         `settings.compile_budget` of the time, and a key has to come twice if those before it did not come again
pause    calls that end eagerly one after the other are called directly for a while: the cost of looking at a call is
         spread over so many that little of it is left
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from treeplay.settings import FREE_KINDS, CompileTime, settings
from treeplay.tree.table import Entry

_LOOKS_BEFORE_PAUSE = 8  # that nothing has paid for
_MOST_DOUBLINGS = 12  # of the calls that are left alone: 4,096 at the most
_GROWTH = 1.2  # from look to look, of what a call takes at least
_SHARE = 0.005  # of a call's time that looking at it may take, in the mean
_LEAST_SECONDS = 2e-7  # which it may take in any case
_SECONDS_BETWEEN_TRIES = 60.0  # of a key whose recording was no faster than the program
_FEW_WAITS = 3  # calls in a row that are too early to record
_SECONDS_BETWEEN_LOOKS = 1.0  # at a key that was refused


class Budget(CompileTime):
    """Which keys of one program are observed and recorded. For a thread that holds the program's lock.

    `is_compiling`: whether a thread of ours compiles, beside which recording takes several times as long."""

    def __init__(self, is_compiling: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self._is_compiling = is_compiling
        self._admitted = 0
        self._recorded = 0
        self._longest = 0.0  # seconds that compiling took beside calls

    def admits(self, entry: Entry, times: int) -> bool:
        """Whether a new key may be observed that came so many times, this call included. Its entry is marked if it is free."""
        keys_come_again = 2 * self._recorded >= self._admitted or times > 1 or settings.compile_budget == math.inf
        entry.is_free = self._admitted < FREE_KINDS
        is_admitted = entry.is_free or (keys_come_again and self._has_time())
        self._admitted += is_admitted
        return is_admitted

    def allows(self, entry: Entry) -> bool:
        """Whether a call of an observed key may be recorded."""
        return entry.is_free or self._has_time()

    def _has_time(self) -> bool:
        return settings.compile_budget == math.inf or (self.is_left() and not self._is_compiling())

    def took_back(self, keys: int) -> None:
        """Note that so many keys are gone that were admitted: their calls have other ones by now."""
        self._admitted = max(0, self._admitted - keys)

    def recorded(self, entry: Entry) -> None:
        """Note that a key came again, and has a recording."""
        self._recorded += not entry.recordings

    @contextmanager
    def spending(self, entry: Entry) -> Iterator[None]:
        """A block that observes or records a call."""
        start = perf_counter()
        try:
            yield
        finally:
            self.spent(entry, perf_counter() - start)

    def spent(self, entry: Entry, seconds: float) -> None:
        """Note that a key took so long."""
        entry.spent += seconds
        if not entry.is_free:
            self.add(seconds)

    def compiled(self, entry: Entry, seconds: float) -> None:
        """Note that a key's recording took so long to compile, beside calls that went on."""
        self._longest = max(self._longest, seconds)
        self.spent(entry, seconds)

    def may_compile(self, entry: Entry) -> bool:
        """Whether a key's recording, which is there, may be compiled now: if that will not keep others from being recorded,
        which takes a small part of it."""
        return entry.is_free or self.room() >= self._longest

    def outdone(self, entry: Entry, seconds: float) -> None:
        """Note that a key's recording, which took so long to make, was no faster than the program. Another one is made when it
        takes no more than its share of the time since, and never soon; each waits twice as long as the one before."""
        entry.is_free = False
        _put_off(entry, seconds, _SECONDS_BETWEEN_TRIES, entry.outdone)
        entry.outdone += 1

    def refused(self, entry: Entry, seconds: float) -> None:
        """Note that a key, which took so long to look at, was refused. Later looks, if there are any, take their share of
        the time and are put off ever longer, as after `outdone`."""
        _put_off(entry, seconds, _SECONDS_BETWEEN_LOOKS, entry.refused)
        entry.refused += 1

    def waits(self, entry: Entry, seconds: float) -> None:
        """Note that a key's call was found to be too early to record, which took so long. After a few, each time that is tried
        takes a smaller part of the time since. 0 seconds: later calls are expected to be otherwise."""
        entry.waits += 1
        if seconds and entry.waits >= _FEW_WAITS:
            entry.not_before = perf_counter() + seconds * 2 ** (entry.waits - _FEW_WAITS + 1)

    def still_refused(self, entry: Entry, seconds: float) -> None:
        """Note that it took so long to find that nothing speaks for another look at a key that was refused."""
        entry.not_before = perf_counter() + max(seconds / _SHARE, _SECONDS_BETWEEN_LOOKS)

    def may_try_again(self, entry: Entry) -> bool:
        """Whether a key that was put off may have another recording."""
        return perf_counter() >= entry.not_before


def _put_off(entry: Entry, seconds: float, least: float, times: int) -> None:
    """Leave a key alone until what it took is no more than its share of the time since; each time for twice as long."""
    share = min(settings.compile_budget, 1.0)
    wait = max(seconds / share, least) if share else math.inf
    entry.not_before = perf_counter() + wait * 2**times


class Pause:
    """How many calls are left to the program itself before one is looked at again. For a thread that holds the lock, but for
    `left` and `last`: a call that is not looked at changes them without it, in one step each."""

    def __init__(self) -> None:
        self.left = 0
        self.entry, self.why = Entry({}), ""  # of the last look, for which these calls count
        self._counted = 0  # what was left when they were counted
        self._looks = 0.0  # that nothing has paid for
        self._served = 0
        # Seconds of a call. One that was looked at takes longer, since the processor's caches hold other things then: the last
        # one of a pause is timed too.
        self._runs = self.last = math.inf

    def looked(self, entry: Entry, why: str, *, cost: float, ran: float, served: int) -> None:
        """Note a look at a call that runs eagerly, which took `cost` seconds, and the call `ran`. `served`: the calls
        that went to recordings so far: they took half as long as this one, say, and pay for looks with what they saved."""
        paid, self._served = max(0, served - self._served) * ran / (2 * cost), served
        self._looks = min(max(0.0, self._looks - paid) + 1, _LOOKS_BEFORE_PAUSE + _MOST_DOUBLINGS)
        self._runs, self.last = min(ran, self.last, _GROWTH * self._runs), math.inf
        if self._looks >= _LOOKS_BEFORE_PAUSE:
            enough = int((cost + ran - self._runs) / max(_SHARE * self._runs, _LEAST_SECONDS))
            self.left = min(enough, 1 << int(self._looks) - _LOOKS_BEFORE_PAUSE)  # twice as many after each look
            self.entry, self.why, self._counted = entry, why, self.left

    def paid_off(self) -> None:
        """Note that a look led to something, as the next ones may."""
        self._looks = 0.0

    def end(self) -> None:
        """Leave no further call alone; those that were are `taken` before."""
        self.left = self._counted = 0

    def taken(self) -> int:
        """The calls that were left alone and not counted yet."""
        left = self.left  # once: other threads lower it meanwhile
        taken, self._counted = self._counted - left, left
        return taken
