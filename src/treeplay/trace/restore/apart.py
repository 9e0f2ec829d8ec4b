"""Telling apart what a program changes and what other threads change while it runs: around a run, and after it."""

from __future__ import annotations

import contextlib
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

from treeplay.guards.reads.reads import Reads
from treeplay.guards.reads.watched_classes import classes_of, hooks_of_modules
from treeplay.sandbox.generators import has_company
from treeplay.sandbox.signal_handlers import signal_handlers
from treeplay.trace.call import Call
from treeplay.trace.raised import SignalCheck
from treeplay.trace.restore.randomness import TrackedGenerators
from treeplay.trace.restore.snapshot import Snapshot
from treeplay.trace.restore.whose import Whose
from treeplay.trace.survey.found import Survey
from treeplay.values.kinds import is_a

_DRAWS_OF_TORCH = re.compile(
    "rand|normal|uniform|bernoulli|dropout|multinomial|poisson|binomial|exponential|cauchy|geometric|gamma|dirichlet|"
    "rrelu|attention|lstm|gru|rnn|seed|Generator|compile|_call"
)


def reads_of(found: Survey) -> Reads:
    """What notes the reads and stores of a run that reaches what was found."""
    modules = [value for value in found.kept if is_a(value, types.ModuleType)]
    return Reads(classes_of(found.kept), modules, hooks_of_modules())


@contextlib.contextmanager
def told_apart(
    program: Any,
    call: Call,
    snapshot: Snapshot,
    known: Reads | None,
    generators: TrackedGenerators | None = None,
    alone: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    is_noted: bool = False,
) -> Iterator[Reads | None]:
    """A block that runs `program` over a snapshot. At its end the snapshot knows whose each change is, and `generators` whether
    the program used them. Without other threads there is nothing to tell apart.

    `known`: what an earlier run read and stored, as this one does too. Without it that is noted, within `alone()`, since one
    thread at a time can note. Gives what is known after the block, which with `is_noted` is never None."""
    if not is_noted and not has_company() and (generators is None or generators.is_used):
        with signal_handlers.apart(), SignalCheck():
            yield known
        return
    reads = known or reads_of(snapshot.found)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(snapshot.gradients.apart())
            stack.enter_context(signal_handlers.apart())
            if known is None:
                stack.enter_context(alone())
                stack.enter_context(reads)
            with SignalCheck():
                yield reads
    finally:
        # After a failed run too: what is undone then has to be its own.
        snapshot.whose = whose_changes(program, call, snapshot, reads)
        if generators is not None:
            generators.note(reads)


def whose_changes(program: Any, call: Call, snapshot: Snapshot, reads: Reads) -> Whose:
    """Whose the changes are that a run, which is over now, left behind."""
    return Whose(program, call, snapshot.found, [change.before for change in snapshot.changes()], reads)


def may_have_drawn(reads: Reads | None) -> bool:
    """Whether a run may have used torch's random generators, by the names of the functions in C that it called."""
    if reads is None or reads.code is None:
        return True
    return any(_DRAWS_OF_TORCH.search(name) for name in (*reads.builtins, *reads.methods))
