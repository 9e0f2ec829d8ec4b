"""What a run did besides computing, and no replay does: it printed, logged, or wrote to a file.

That it did is known from the calls of builtins, which are noted as the program runs; where, from the source of the code that
ran: of a function that prints in several lines, each is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from types import CodeType

from treeplay.guards.reads.names import steps_by_line
from treeplay.guards.reads.reads import Reads
from treeplay.observe.lines import is_own_or_text, is_users_or_text
from treeplay.values.location import Location
from treeplay.values.refusal import Reason

_WRITES = frozenset({"write", "writelines", "writerow", "writerows", "send", "sendall"})
# What is sent to the last three is a value, and no write.
_IN_MEMORY = frozenset({"StringIO", "BytesIO", "generator", "coroutine", "async_generator"})
_LEADS_TO_WRITES = _WRITES | {"dump", "write_text", "write_bytes", "to_csv", "to_json", "print"}
_NOT_REPEATED = "happens only in calls that run the program, and not in replays, which run no Python"
_MOST = 5


def effects_of(reads: Reads) -> tuple[Reason, ...]:
    """Each kind of effect that the run had, at each line that may have had it; the user's own lines, where there are any."""
    code = [one for one in reads.ran if is_users_or_text(one.co_filename)]
    own = [one for one in code if is_own_or_text(one.co_filename)]
    found: dict[Reason, None] = {}
    for what, names, advice in _kinds(reads):
        places = [*mentions(own, names)] or [*mentions(code, names)]
        found |= {Reason(what, _NOT_REPEATED, advice, where): None for where in places}
    return tuple(found)[:_MOST]


def _kinds(reads: Reads) -> Iterator[tuple[str, Collection[str], str]]:
    """What was done, the names by which code does it, and what to do instead."""
    if "builtins.print" in reads.builtins:
        yield "print", {"print"}, "return what it shows, and print it after the call"
    if reads.messages:
        yield "logging", reads.messages, "return what it tells, and log it after the call"
    written = {name for cls, _, name in (method.rpartition(".") for method in reads.methods) if cls not in _IN_MEMORY}
    if written & _WRITES and not reads.messages:  # a handler's own writes
        yield "write", _LEADS_TO_WRITES - {"print"}, "return what is written, and write it after the call"


def mentions(code: Iterable[CodeType], names: Collection[str]) -> Iterator[Location]:
    """The lines of this code that look up one of these names."""
    for one in code:
        for line, steps in steps_by_line(one).items():
            if any(step.argval in names and step.opname.startswith("LOAD_") for step in steps):
                yield Location(one.co_filename, line, one.co_name)
