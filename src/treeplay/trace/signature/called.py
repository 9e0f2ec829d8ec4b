"""What a run called and no replay can make up for: a thread, a handler of signals, what answers otherwise each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from treeplay.errors import Refusal
from treeplay.guards.outside import (
    Asking,
    caches_counted,
    caches_emptied,
    never_the_same,
    seeds_asked,
    signals_asked,
    threads_started,
)
from treeplay.guards.reads.reads import Reads
from treeplay.values.refusal import Reason


def check_called(reads: Reads) -> None:
    """Refuse a run that called what no replay can make up for."""
    for reason in not_in_a_replay(reads):
        raise Refusal(reason)


def not_in_a_replay(reads: Reads) -> Iterator[Reason]:
    """Each thing that a run called and no replay can make up for."""
    for find, why, advice in _NOT_IN_A_REPLAY:
        found = find(reads)
        if found is not None:
            name, where = found
            yield Reason(name, why, advice, where)


_NOT_IN_A_REPLAY: tuple[tuple[Callable[[Reads], Asking | None], str, str], ...] = (
    (
        lambda reads: threads_started(reads.builtins),
        "starts a thread, and what a thread does is in no recording",
        "start it outside of the program",
    ),
    (
        lambda reads: signals_asked(reads.builtins, reads.ran),
        "is asked by the program, and a replay sets no handler or timer of signals, and notices none that is set",
        "do it outside of the program",
    ),
    (
        lambda reads: never_the_same(reads.builtins),
        "is asked by the program and gives another answer each time, so a recording would freeze this one",
        "ask outside of the program, and pass what it gives as a tensor",
    ),
    (
        lambda reads: seeds_asked(reads.methods, reads.ran),
        "is asked by the program, and a trace gives generators seeds of its own",
        "ask outside of the program, and pass the seed as an argument",
    ),
    (
        lambda reads: caches_emptied(reads.methods, reads.ran),
        "the program empties the cache of a function, and a replay runs no Python",
        "empty it outside of the program",
    ),
    (
        lambda reads: caches_counted(reads.methods, reads.ran),
        "the program asks what the cache of a function holds, and a replay asks for no entry of it",
        "ask outside of the program",
    ),
)
