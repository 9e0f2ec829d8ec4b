"""The audit of the recording that served the last calls, before the call that it is due for."""

from __future__ import annotations

from dataclasses import replace

from treeplay.errors import InternalError, StaleRecordingWarning
from treeplay.observe import counters
from treeplay.observe.events import log_event
from treeplay.observe.internal import tell_internal
from treeplay.observe.once import warn_here
from treeplay.sandbox.boundary import Boundary
from treeplay.settings import settings
from treeplay.trace.call import Call
from treeplay.trace.turn import Busy
from treeplay.tree.answers import Answers
from treeplay.tree.audit import Audit
from treeplay.tree.gate import Gate
from treeplay.tree.keys.numbers import numbers_given
from treeplay.tree.mismatch import first_mismatch
from treeplay.tree.table import Recording
from treeplay.values.refusal import Reason


def audit_last(answers: Answers, gate: Gate, call: Call) -> None:
    """Trace the last recording's program again, if the recording fits `call` and there is time; drop one that is stale."""
    recording = answers.cache.last
    if recording is None or recording.audit is None or not settings.audit:
        return
    answers.cache.settle()
    if not recording.audit.may_run(recording.calls):
        return
    difference = _difference(recording, recording.audit, answers, gate, call)
    if difference is not None:
        _drop_stale(recording, difference, answers)


def _difference(recording: Recording, audit: Audit, answers: Answers, gate: Gate, call: Call) -> Reason | None:
    """How the program differs from its recording by now; an audit that breaks was the last one."""
    cache = answers.cache
    cache.use(None)  # other threads' calls come to the gate
    try:
        with Boundary("auditing a recording", reasons=(Busy,)):
            fits = first_mismatch(recording.signature, call) is None
            signature = recording.signature
            call = replace(call, numbers=numbers_given(signature), state=signature.state_numbers)
            with gate.alone(), gate.let_go():
                return audit.run(call, recording.calls) if fits else None
    except Busy:
        return None
    except InternalError as error:
        tell_internal(error, f"the audit of {answers.name}")
        recording.audit = None
        return None
    finally:
        # Else another thread has dropped it, while the lock was let go.
        if any(recording in entry.recordings for entry in cache.table):
            cache.use(recording)


def _drop_stale(recording: Recording, difference: Reason, answers: Answers) -> None:
    """Tell that a recording no longer does what its program would, and forget it."""
    counters.add("stale recordings", difference.op)
    log_event("guards", f"{answers.name}: an audit found this: {difference}", difference.where)
    entry = answers.cache.entry_of(recording)
    answers.cache.drop(entry, recording)
    entry.causes.append(f"an audit found this: {difference}")
    entry.rerecordings += 1
    entry.observations.clear()
    if entry.rerecordings >= settings.max_rerecordings:
        answers.note_refusal(entry, difference)
    times = f"up to {recording.calls} times" if recording.calls > 1 else "once"
    warn_here(
        f"treeplay replayed an old recording of {answers.name}, {times}. {difference}", category=StaleRecordingWarning
    )
