"""A launch that raised: whose error it was, and what is left to do for the call.

conditions ─▶ launch ─▶ slots, results
    │            │           └ effects have happened: the rest of the call function is run once more
    │            ├ its operators had begun ─ they write nothing ─▶ the program as it is: it raises too, or the error was ours
    │            │                          └ they write ─▶ raised: eager, too, would have stopped half-way
    └────────────┴ nothing has run: the program as it is; so it is where a number cannot be computed
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from enum import Enum
from types import FrameType
from typing import Any

from treeplay.errors import DidNotPass, NoNumber, ProgramRaised, RanOtherwise, Refusal, TakenBack, UsageError
from treeplay.observe.lines import TORCH, is_users
from treeplay.sandbox.boundary import internal
from treeplay.trace.call import Call
from treeplay.trace.raised import program_raised
from treeplay.tree.answers import BROKEN, REPLAYING, Answers, as_internal
from treeplay.tree.table import Entry, Recording

# Files of code that launches operators.
_LOWERED = ("<treeplay aten", "<treeplay launch", "<treeplay node", "<eval_with_key>", TORCH)


class Reached(Enum):
    """How far a call came."""

    NOTHING = "no operator has run"
    OPERATORS = "operators have run, some of them perhaps"
    RESULTS = "all has run, and slots and results are being put together"
    USERS_CODE = "all has run, and code of the user's that results are made with raised"


def reached(recording: Recording, error: BaseException) -> Reached:
    """How far a call of `recording` came that raised `error`."""
    steps = list(_from_call_function(recording, error))
    if not steps:
        return Reached.NOTHING
    (_, line), *inner = steps
    files = [frame.f_code.co_filename for frame, _ in inner]
    if line > recording.launched:
        # By identity: the `self` of that frame may be anything, a tensor too, whose `==` is no answer.
        called = inner[0][0].f_locals.get("self") if inner else None
        is_in_schedule = any(called is schedule for schedule in recording.signature.schedules)
        return Reached.USERS_CODE if is_in_schedule or any(map(is_users, files)) else Reached.RESULTS
    if recording.lowering == "capture":
        return _reached_by_capture([frame.f_code.co_qualname for frame, _ in inner])
    return Reached.OPERATORS if any(file.startswith(_LOWERED) for file in files) else Reached.NOTHING


def _reached_by_capture(names: Sequence[str]) -> Reached:
    """How far the user's code came, which is recorded as it runs: what a recording of it does is undone."""
    if "OpaqueProgram.plain" in names:
        return Reached.USERS_CODE
    is_being_recorded = not {"record_tape", "CudaRecording._capture"}.isdisjoint(names)
    return Reached.NOTHING if is_being_recorded else Reached.OPERATORS


def answer_raised(answers: Answers, entry: Entry, recording: Recording, raised: list[Exception], call: Call) -> Any:
    """What is left to do for a call whose replay raised: once it has had its effects, nothing has them again. Called while
    nothing handles the error, which is taken out of the list: see `attempt`."""
    cache = answers.cache
    error = cause = raised.pop()
    try:
        if isinstance(error, TakenBack) and isinstance(error.__cause__, Exception):
            cause = error.__cause__
        # Eager raises there, or handles it, or computes with NumPy, which raises nothing.
        if isinstance(cause, NoNumber):
            return answers.eagerly(entry, call, REPLAYING)
        if isinstance(error, TakenBack):
            if isinstance(cause, Refusal):
                cache.drop(entry, recording)
                return answers.refused(entry, cause, call)
            if isinstance(cause, DidNotPass):  # which is known when the recording has been launched
                cache.served(recording)
                return answers.instead(entry, recording, cause, call, why=None, doing="checking the values of a call")
            return answers.instead(entry, recording, cause, call, why=REPLAYING, doing="replaying a call")
        if isinstance(error, RanOtherwise):
            cache.drop(entry, recording)
            return answers.ran_otherwise(entry, error)
        match reached(recording, error):
            case Reached.USERS_CODE:
                cache.served(recording)
                raise error
            case Reached.OPERATORS if recording.signature.mutated or recording.draws:
                answers.replay_raised()
                raise error
            case Reached.RESULTS:
                return _finished(answers, entry, recording, error)
        if isinstance(error, ProgramRaised):
            return answers.to_tell(entry, error, call)
        if isinstance(error, Refusal):
            cache.drop(entry, recording)
            return answers.refused(entry, error, call)
        if recording.lowering == "capture":  # the user's code was being recorded
            return answers.to_tell(entry, program_raised(error, "being recorded"), call)
        if isinstance(error, UsageError):  # somebody captures in this thread
            return answers.eagerly(entry, call, BROKEN)
        return answers.instead(entry, recording, error, call, why=BROKEN, doing="launching a recording")
    finally:
        del error, cause  # or one that goes on to the user would keep this frame, which holds it


def _finished(answers: Answers, entry: Entry, recording: Recording, error: Exception) -> Any:
    """The result of a call that raised after its launch."""
    cache, doing = answers.cache, "putting the results of a replay together"
    try:
        out = finish(recording, error)
    except Exception as again:
        cache.drop(entry, recording)
        answers.replay_raised()
        raise internal(again, doing) from again
    if recording in entry.recordings:
        cache.served(recording)
    else:  # it was the first launch: another call makes it anew
        cache.tally.went += 1
        recording.free()
    answers.note_broken(entry, as_internal(error, doing))
    return out


def finish(recording: Recording, error: BaseException) -> Any:
    """The result of a call of which only the end is missing: that part of its function is run again, from where it raised.

    Its lines set slots and build results; each can be run twice.
    """
    frame, line = next(_from_call_function(recording, error))
    rest = []
    for text in recording.source.splitlines()[line - 1 :]:
        if not text.startswith("    "):
            break
        rest.append(text)
    values = {name: value for name, value in frame.f_locals.items() if name.isidentifier()}
    # A copy, in which `finish` is put.
    scope = dict(recording.call.__globals__)
    exec("\n".join([f"def finish({', '.join(values)}):", *rest]), scope)
    return scope["finish"](**values)


def _from_call_function(recording: Recording, error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The frames that raised, with their lines, from the recording's call function on."""
    code = getattr(recording.call, "__code__", None)
    has_met = False
    for frame, line in traceback.walk_tb(error.__traceback__):
        has_met = has_met or frame.f_code is code
        if has_met:
            yield frame, line
