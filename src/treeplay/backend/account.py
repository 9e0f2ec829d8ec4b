"""What became of each graph, always kept: a snapshot as plain values, one line in the log for each skip, and counts.

graph compiled ─▶ account ─┬▶ recorded(), failed(reason), skipped(reasons)
                           └▶ report() ─▶ `graph_reports()`, `explain`
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from treeplay.errors import Unrecorded
from treeplay.locks import shared_lock
from treeplay.observe import compile_records, counters
from treeplay.observe.events import log_event, log_refusal
from treeplay.values.captured import Direction, GraphFacts, GraphReport, Skip
from treeplay.values.launch import LaunchFacts
from treeplay.values.refusal import Reason

_graph_ids = itertools.count()
_lock = shared_lock()
_accounts: weakref.WeakSet[Account] = weakref.WeakSet()
_collecting: list[list[Account]] = []


def next_graph_id() -> int:
    """The number of a compile: its forward and its backward share it."""
    return next(_graph_ids)


class Counting(Protocol):
    """What a graph is replayed by."""

    def facts(self) -> LaunchFacts | None: ...

    def plain_calls(self) -> Mapping[str, int]: ...


class Account:
    """The account of one compiled graph; owned by its job, and lives as long as the compiled callable."""

    def __init__(
        self, graph_id: int, direction: Direction, facts: GraphFacts, *, inner: str, seconds: float, must_record: bool
    ) -> None:
        self.graph_id = graph_id
        self.direction = direction
        self.facts = facts
        self._inner = inner
        self._seconds = seconds
        self._must_record = must_record
        self._outcome = "compiled"
        self._skips: tuple[Skip, ...] = ()
        self.is_explained = False
        self.seconds_a_call: float | None = None
        self._recording: Callable[[], Counting | None] = lambda: None

    def skipped(self, skips: Sequence[Skip]) -> None:
        """The graph is not recorded, for these reasons. Reported once; raises if every graph has to be."""
        self._skip(skips)
        if self.facts.operators:
            for skip in skips:
                log_refusal(f"graph {self.graph_id} {self.direction}", skip.reason)

    def _skip(self, skips: Sequence[Skip]) -> None:
        self._outcome, self._skips = "skipped", tuple(skips)
        counters.add("skips", "total")
        for name in sorted({skip.name for skip in skips}):
            counters.add("skips", name)
        if self._must_record:
            raise Unrecorded(skips[0].reason)

    def refused(self, reason: Reason) -> None:
        """The graph could not be compiled, and runs as it is."""
        try:
            self.skipped((Skip("uncompiled", reason),))
        finally:
            # Whether or not `skipped` has raised: it has noted another outcome.
            self._outcome = "uncompiled"

    def failed(self, reason: Reason) -> None:
        """A recording was tried and failed: the graph runs unrecorded from here on. The device has logged it."""
        self._skip((Skip("failed", reason),))

    def forgotten(self) -> None:
        """The recording is gone; a later call makes one anew."""
        self._outcome = "compiled"

    def recorded(self) -> None:
        """A recording was made."""
        self._outcome = "recorded"
        counters.add("graphs", "recorded")
        log_event("recordings", f"graph {self.graph_id} {self.direction}: recorded")

    def follow(self, recording: Counting) -> None:
        """Have reports tell what a recording does, as long as it lives; it holds this account."""
        self._recording = weakref.ref(recording)

    def report(self) -> GraphReport:
        """The account as it stands, as plain values."""
        recording = self._recording()
        return GraphReport(
            graph_id=self.graph_id,
            direction=self.direction,
            outcome=self._outcome,
            skips=self._skips,
            inputs=self.facts.inputs,
            operators=self.facts.operators,
            inner=self._inner,
            seconds=self._seconds,
            seconds_a_call=self.seconds_a_call,
            launch=recording.facts() if recording is not None else None,
            not_replayed=dict(recording.plain_calls()) if recording is not None else {},
        )


def enter(account: Account) -> None:
    """Take an account into the books."""
    with _lock:
        _accounts.add(account)
        for collected in _collecting:
            account.is_explained = True
            collected.append(account)


def note(account: Account) -> None:
    """Put an account as it stands into the record of compiles."""
    report = account.report()
    compile_records.add(report, direction=account.direction)
    log_event("recordings", f"{report.head}, {report.seconds:.2f} s")


def graph_reports() -> tuple[GraphReport, ...]:
    """All graphs that are alive, of `torch.compile` and of programs that the caller differentiates, in the order of their
    compiles, forward before backward."""
    with _lock:
        alive = list(_accounts)
    order = {"forward": 0, "inference": 0, "backward": 1}
    return tuple(account.report() for account in sorted(alive, key=lambda item: (item.graph_id, order[item.direction])))


@contextmanager
def collecting() -> Iterator[list[Account]]:
    """Collect the accounts of what is compiled while this lasts, in any thread."""
    collected: list[Account] = []
    with _lock:
        _collecting.append(collected)
    try:
        yield collected
    finally:
        with _lock:
            _collecting.remove(collected)
