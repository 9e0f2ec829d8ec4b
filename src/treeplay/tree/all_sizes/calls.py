"""Calls that a recording for all sizes serves, and how a program gets one: on the second size of an argument.

call with new sizes ┬▶ a recording for all sizes fits ─▶ replayed
                    ├▶ one is being compiled ─▶ the program as it is
                    └▶ none yet ─▶ observed, then traced with symbols ─▶ thread: compiled ─▶ serves from then on

The call that is observed has its result by then: whatever comes of the trace is for later calls. Where nothing comes of it,
sizes are recorded one by one, as if this had not been tried.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from time import perf_counter
from typing import Any

import torch

from treeplay.codegen.compiler import find_compiler
from treeplay.errors import Refusal, UsageError
from treeplay.observe import counters
from treeplay.observe.internal import tell_internal
from treeplay.sandbox.attempt import attempt
from treeplay.sandbox.boundary import Boundary
from treeplay.settings import settings
from treeplay.trace.call import Call
from treeplay.trace.turn import Busy
from treeplay.tree.all_sizes.compile import (
    ForAllSizes,
    MadeForAllSizes,
    compile_in_background,
    is_awaited,
    note_failed,
    prepare_in_background,
)
from treeplay.tree.all_sizes.sizes import SizelessKey, described, may_be_symbols, on_the_cpu, sizes_in, those_of
from treeplay.tree.all_sizes.trial import SizesTrial
from treeplay.tree.answers import OBSERVED, OTHERS, Answers, as_internal
from treeplay.tree.decide import KeyPhase
from treeplay.tree.gate import Gate
from treeplay.tree.keys.key import Key, has_fakes
from treeplay.tree.launching import answer_raised
from treeplay.tree.observing import Observe
from treeplay.tree.recorders import recorders
from treeplay.tree.table import Entry, Recording
from treeplay.tree.tiers import compile_thread
from treeplay.values.refusal import Reason
from treeplay.values.signature import Kind
from treeplay.values.sizes import ONE_BY_ONE, SIZES, not_for_all
from treeplay.wrap.emit import MISS

COMPILING = "compiled for all sizes meanwhile"
TIMED = "timed beside a recording for all sizes"
_MOST_FAILURES = 2  # after which the sizes of a program are left to be recorded one by one


class AllSizes:
    """The recordings for all sizes of one program. For a thread that holds its lock."""

    def __init__(self, how: ForAllSizes | None, observe: Observe, gate: Gate, answers: Answers) -> None:
        self._how = how
        self._observe = observe
        self._gate = gate
        self._answers = answers
        self._cache = answers.cache
        self._is_preparing = False

    def answer(self, entry: Entry, key: Key, call: Call) -> Any:
        """The result of a call that has no recording of its own sizes; MISS where it is to be looked at as any other."""
        came = self._cache.sizes.came(key) if self._may_serve(entry, key, call) else None
        if came is None or not came[1]:
            return MISS
        sizeless, changing = came
        own = self._cache.table.get(sizeless)
        if own is not None:
            since = recorders.now()
            out = self._replayed(own, call, sizes_in(call.leaves, changing))
            if out is not MISS or own.phase is KeyPhase.REFUSED:  # then sizes are recorded one by one
                return out
            if is_awaited(own):
                return self._answers.left_alone(own, call, COMPILING)
            if own.recordings and recorders.disturbed(since):
                return self._answers.eagerly(own, call, OTHERS)
        if not may_be_symbols(call, changing):
            return MISS
        own = own or Entry(described(call, changing), is_free=not self._cache.sizes.is_tried)
        is_enough = own.waits >= _MOST_FAILURES or own.rerecordings > settings.max_rerecordings
        if is_enough or not self._cache.budget.allows(own):
            return MISS
        self._cache.table.put(sizeless, own)
        why = self._known_reason(sizeless)
        if why is not None:
            note_failed(own, not_for_all(why), self._cache.name)
            return MISS
        self._cache.sizes.is_tried = True
        if not self._is_prepared():
            return self._answers.left_alone(own, call, COMPILING)
        return self._recorded(own, call, changing)

    def _known_reason(self, sizeless: SizelessKey) -> str | None:
        """What a trace for all sizes would meet, by what is known of calls of one size: it may take seconds."""
        for _, entry in those_of(sizeless, self._cache.table.items()):
            if entry.phase is KeyPhase.REFUSED:
                return "its sizes are refused one by one"
            for recording in entry.recordings:
                signature = recording.signature
                if signature.kind is not Kind.INFERENCE:
                    return "its results or its effects have to do with gradients"
                if signature.mutated or signature.writes:
                    return "it writes an argument or state"
        return None

    def _is_prepared(self) -> bool:
        """Whether all is imported; if not, that is done in the background."""
        if self._how is None or self._how.is_prepared():
            return True
        if not self._is_preparing:
            self._is_preparing = True
            compile_thread.add(
                partial(prepare_in_background, self._how.prepare, weakref.ref(self._cache), self._gate.lock)
            )
        return False

    def _may_serve(self, entry: Entry, key: Key, call: Call) -> bool:
        if self._how is None or self._cache.sizes.is_off:
            return False
        if entry.recordings or entry.phase not in (KeyPhase.NEW, KeyPhase.OBSERVED):
            return False
        is_wanted = settings.tiers == "background" and not torch.are_deterministic_algorithms_enabled()
        is_plain = key.ambience.only_eagerly is None and not (call.has_numbers or call.arrays or has_fakes(call))
        return is_wanted and is_plain and on_the_cpu(call) and find_compiler().path is not None

    def _replayed(self, own: Entry, call: Call, sizes: tuple[int, ...]) -> Any:
        for recording in reversed(own.recordings):
            if recording.signature.sizes is not None:  # if these sizes had a recording of their own, it is gone
                recording.signature.sizes.elsewhere.discard(sizes)
            trial = self._cache.sizes.trials.get(recording)
            is_timed = trial is not None and not recorders.disturbed(recorders.now())  # else all takes longer
            if trial is not None and is_timed and trial.is_for_program(sizes):
                start = perf_counter()
                out = self._answers.eagerly(own, call, TIMED)
                trial.took(perf_counter() - start, sizes, is_program=True)
                return out
            start = perf_counter()
            out, raised = attempt(recording.call, call.args, call.kwargs)
            if raised:
                return answer_raised(self._answers, own, recording, raised, call)
            if out is not MISS:
                self._cache.served(recording)
                if trial is None:
                    self._cache.glances.remember(call, own, recording)
                    return out
                if is_timed:
                    trial.took(perf_counter() - start, sizes, is_program=False)
                self._tried(own, recording, trial)
                return out
        return MISS

    def _tried(self, own: Entry, recording: Recording, trial: SizesTrial) -> None:
        """After a call of a recording that is on trial: each call is looked at as long as it is."""
        self._cache.use(None)
        verdict = trial.verdict()
        if verdict is None:
            return
        is_faster, told = verdict
        del self._cache.sizes.trials[recording]
        counters.add("sizes", "faster for all" if is_faster else "not faster for all")
        if is_faster:
            recording.tier = f"compiled once for all sizes: {told}"
            return
        self._cache.drop(own, recording)
        note_failed(
            own, Reason(SIZES, f"what was compiled for all at once is not faster: {told}", ONE_BY_ONE), self._cache.name
        )

    def _recorded(self, own: Entry, call: Call, changing: Mapping[int, frozenset[int]]) -> Any:
        """The result of a call that is observed, and that the program is then traced for."""
        self._answers.count(own, OBSERVED)
        with self._cache.budget.spending(own), self._gate.inside():
            out, log = self._observe(self._answers.program, call)
        if self._how is None or getattr(log, "failure", None) is not None or not self._cache.table.holds(own):
            return out
        own.rerecordings += own.phase is KeyPhase.RECORDED
        with self._cache.budget.spending(own):
            made = self._made(self._how, own, call, log, changing)
        own.is_free = False
        if made is not None and self._cache.table.holds(own):
            own.arguments = described(call, changing)
            own.recordings.append(made.recording)
            own.phase = KeyPhase.RECORDED
            work = partial(compile_in_background, weakref.ref(made.recording), made.compile, weakref.ref(self._cache))
            compile_thread.add(partial(work, self._gate.lock, self._cache.name))
        self._cache.evict()
        return out

    def _made(
        self, how: ForAllSizes, own: Entry, call: Call, log: list[Any], changing: Mapping[int, frozenset[int]]
    ) -> MadeForAllSizes | None:
        try:
            with (
                recorders,
                self._gate.alone(),
                self._gate.let_go(),
                Boundary("recording a call for all sizes", reasons=(Busy, UsageError)),
            ):
                return how.make(call, log, dict(changing))
        except (Busy, UsageError):
            pass  # another call may find nobody in its way
        except Refusal as refusal:
            note_failed(own, refusal.reason, self._cache.name)
        except Exception as error:
            told = as_internal(error, "recording a call for all sizes")
            own.errors.append(told.text)
            tell_internal(told, self._cache.name)
            note_failed(own, Reason(SIZES, str(told).splitlines()[0], "report it"), self._cache.name)
        return None
