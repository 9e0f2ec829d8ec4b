"""Recordings for all sizes in the background: what is imported for them, and how their call functions come to be.

A recording is in its entry before its call function is: `not_yet` until then, which no call fits. `prepare_in_background` and
`compile_in_background` are run by the thread that compiles; each takes the program's lock at its end, and holds nothing of a
program that is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from treeplay.codegen import Source, load_source
from treeplay.errors import InternalError, LoweringError, Refusal
from treeplay.observe import counters
from treeplay.observe.events import log_event
from treeplay.observe.internal import tell_internal
from treeplay.sandbox.boundary import Boundary
from treeplay.settings import settings
from treeplay.trace.call import Call
from treeplay.tree.all_sizes.trial import SizesTrial
from treeplay.tree.decide import KeyPhase
from treeplay.tree.recorders import recorders
from treeplay.tree.table import Entry, Recording
from treeplay.values.refusal import Reason
from treeplay.values.sizes import SIZES, not_for_all
from treeplay.wrap.emit import MISS


@dataclass(frozen=True, slots=True)
class MadeForAllSizes:
    """A recording whose call function is to come, and what compiles and writes it, in any thread.

    `compile` gives what writes it for a recording that is still there; it holds nothing of the program, and raises
    `LoweringError` or `Refusal`."""

    recording: Recording
    compile: Callable[[], Callable[[Recording], Source]]


@dataclass(frozen=True, slots=True)
class ForAllSizes:
    """How recordings for all sizes are made. `prepare` imports what it takes, in any thread, which may take seconds."""

    make: Callable[[Call, list[Any], Mapping[int, frozenset[int]]], MadeForAllSizes]
    prepare: Callable[[], None]
    is_prepared: Callable[[], bool]


def not_yet(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call function of a recording that is being compiled."""
    return MISS


def is_awaited(entry: Entry) -> bool:
    """Whether what would serve its calls is being compiled."""
    return any(recording.call is not_yet for recording in entry.recordings)


def prepare_in_background(prepare: Callable[[], None], cache: weakref.ref[Any], lock: Any) -> None:
    """In the background: import a compiler. Calls that were left alone meanwhile are looked at again."""
    is_ready = True
    try:
        with recorders, Boundary("importing a compiler"):
            prepare()
    except InternalError as error:
        is_ready = False
        tell_internal(error, "a program whose sizes change")
    with lock:
        owner = cache()
        if owner is not None:
            owner.sizes.is_off = not is_ready
            owner.look_again()


def compile_in_background(
    of: weakref.ref[Recording],
    compile_it: Callable[[], Callable[[Recording], Source]],
    cache: weakref.ref[Any],
    lock: Any,
    name: str,
) -> None:
    """In the background: compile what a recording runs, and write its call function."""
    recording = of()
    if recording is None or recording.is_dropped:
        return
    del recording  # a program that is dropped meanwhile goes at once
    start, failed, write = perf_counter(), None, None
    try:
        with recorders, Boundary("compiling in the background", reasons=(LoweringError, Refusal)):
            write = compile_it()
    except Refusal as refusal:
        failed = refusal.reason
    except (LoweringError, InternalError) as error:
        failed = not_for_all(str(error).splitlines()[0])
        if isinstance(error, InternalError):
            tell_internal(error, name)
    seconds = perf_counter() - start
    with lock:
        recording, owner = of(), cache()
        if recording is None or recording.is_dropped or owner is None:
            return
        entry = owner.entry_of(recording)
        owner.budget.spent(entry, seconds)
        recording.seconds["lower in the background"] = seconds
        if write is None:
            owner.drop(entry, recording)
            note_failed(entry, failed or not_for_all("nothing was compiled"), name)
        elif not _still_holds(recording):
            owner.drop(entry, recording)  # a later call is traced anew
            entry.rerecordings += 1
        else:
            source = write(recording)
            asked, key = recording.signature.sizes, owner.table.key_of(entry)
            if asked is not None:
                asked.elsewhere.update(owner.sizes.recorded_alone(key, owner.table.items()))
            recording.call, recording.source = load_source(source), source.text
            recording.launched, recording.tier = source.launched, "compiled once for all sizes"
            if settings.compare_with_eager:
                owner.sizes.trials[recording] = SizesTrial()
            owner.tally.recordings += 1
            counters.add("sizes", "compiled for all")
            log_event("recordings", f"{name}: compiled for all sizes in the background in {seconds:.2f} s")
        owner.look_again()


def _still_holds(recording: Recording) -> bool:
    """Whether all that the program read is as it was. A first compile leaves traces in the process that guards tell of."""
    guards = recording.signature.guarded
    return guards is None or guards.holds()


def note_failed(entry: Entry, reason: Reason, name: str) -> None:
    """Note why nothing was compiled for all sizes. The calls are recorded one by one; nobody is told but who asks."""
    if reason.op != SIZES:
        reason = not_for_all(f"{reason.op} {reason.why}", reason.where, advice=reason.advice)
    entry.waits += 1
    counters.add("sizes", "not for all at once")
    log_event("recordings", f"{name}: {reason}")
    if not entry.recordings:
        entry.phase, entry.reason = KeyPhase.REFUSED, reason
    else:
        entry.causes.append(str(reason).splitlines()[0])
