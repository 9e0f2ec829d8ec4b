"""Our own front end: program → Graph + Signature, on fake tensors, leaving no mark.

    survey ─▶ snapshot ─▶ symbolic numbers ─▶ run on fakes ─▶ slots and results ─▶ restore ─▶ Trace

The program's Python runs once; its tensors are never written. Whatever happens, the snapshot is put back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.fx

from treeplay.errors import ProgramRaised, Refusal, TooEarly
from treeplay.guards.reads.effects import effects_of
from treeplay.sandbox.collection import no_collection
from treeplay.sandbox.generators import has_company
from treeplay.sandbox.interrupts import uninterrupted
from treeplay.sandbox.teardown import Teardown
from treeplay.torch_seam.autograd import histories_given, mode_in_backward
from treeplay.torch_seam.dynamo import dynamo_off
from treeplay.torch_seam.fakes import hold_device_guard
from treeplay.torch_seam.modes import native_layers, plain_functions
from treeplay.trace.arrays import arrays_become_tensors
from treeplay.trace.asked import told_of_the_trace
from treeplay.trace.by_class import known_as_tensors
from treeplay.trace.call import Call, home_of
from treeplay.trace.computed_again import note_line
from treeplay.trace.custom_backwards import run_custom_backwards
from treeplay.trace.differentiable import with_history
from treeplay.trace.going_on import EagerReads, GoingOn
from treeplay.trace.log import LoggedCall, first_difference, result_entry
from treeplay.trace.numbers.errors_of_symbols import ErrorsOfSymbols, may_have_handled
from treeplay.trace.numbers.of_builtins import numbers_answer
from treeplay.trace.numbers.stand_ins import (
    check_arrays,
    not_taken,
    stand_in_for_arguments,
    stand_in_for_rates,
    stand_in_for_state,
)
from treeplay.trace.observe import Log
from treeplay.trace.raised import SignalCheck, program_raised
from treeplay.trace.restore.apart import reads_of, whose_changes
from treeplay.trace.restore.caching import check_cached, check_steady, forget_cached, forget_in_tables
from treeplay.trace.restore.left_behind import check_dead, check_global_state, check_no_leak
from treeplay.trace.restore.randomness import TrackedGenerators
from treeplay.trace.restore.snapshot import Snapshot
from treeplay.trace.restore.surroundings import autocast_cache_apart
from treeplay.trace.run.noticing import noticing
from treeplay.trace.run.products import ProductsAsEager
from treeplay.trace.run.tracer import Tracer
from treeplay.trace.run.waiting import no_waiting
from treeplay.trace.run.watch import WatchFunctions
from treeplay.trace.signature.called import not_in_a_replay
from treeplay.trace.signature.guarded import called_in, guards_of, with_guards
from treeplay.trace.signature.outcome import outcome_of
from treeplay.trace.signature.stores import put_back_stores
from treeplay.trace.survey.names import read_in
from treeplay.trace.survey.recordable import survey_to_record
from treeplay.trace.traced import Trace, TracedRun
from treeplay.trace.training.schedules import Schedules, stepped_last
from treeplay.trace.training.skipping import steps_may_be_skipped
from treeplay.trace.turn import Busy, turn
from treeplay.values.signature import Kind


def trace(
    program: Callable[..., Any],
    call: Call,
    *,
    is_exact: bool = True,
    first_run: Sequence[LoggedCall] = (),
    eager_reads: EagerReads | None = None,
) -> Trace:
    """Run `program` once on fakes and write down what it does.

    `is_exact`: layers take the operators that they take eagerly, also where a compiler would rather have smaller ones.
    `first_run`: the log of an eager run; what an operator laid out there is laid out alike here.
    `eager_reads`: what that run read on the host, to go on with behind refusals; a `Refusal` then has the `others`.
    Raises `Refusal` if it cannot be recorded (`TooEarly` if a later call can be), and `Busy` if another thread traces for
    long. The caller's tensors, slots, random state and modes are as before, also after an exception.
    """
    # A trace keeps so many objects that Python would look for garbage among all that there are: a fifth of its time.
    with turn(), no_collection():
        hold_device_guard()
        try:
            with native_layers() if is_exact else contextlib.nullcontext():
                # Marks are seeds: where other threads draw too, there are none until the program is known to call a generator.
                way = _WayToTrace(is_marking=not has_company())
                while True:
                    try:
                        made, run = _trace(program, call, first_run, eager_reads, way)
                        break
                    except _Again as again:
                        way = replace(way, **again.so)
            return _with_guards(made, run)
        except Refusal as refusal:
            refusal.at(home_of(program))
            raise


@dataclass(frozen=True)
class _WayToTrace:
    """How a program is traced. What costs more than it is worth to most programs is left out until one turns out to need it."""

    is_marking: bool  # so that a call of one of torch's generators is noticed
    hears_of_errors: bool = False  # also of those that the program handles
    has_rates: bool = True  # optimizers' numbers are symbols


class _Again(Exception):
    """The program is to be traced again, and `so`."""

    def __init__(self, **so: bool) -> None:
        self.so = so


def _trace(
    program: Callable[..., Any],
    call: Call,
    first_run: Sequence[LoggedCall],
    eager_reads: EagerReads | None,
    way: _WayToTrace,
) -> tuple[Trace, TracedRun]:
    layouts = dict(entry.layout for entry in first_run if entry.layout is not None)
    known_as_tensors()
    found = survey_to_record(program, call)
    misses = first_run.misses if isinstance(first_run, Log) else None
    check_steady(found.cached, misses)
    snapshot = Snapshot(found, call.tensors)
    with TrackedGenerators(found.generators.values(), is_marking=way.is_marking) as generators:
        reads = snapshot.reads = reads_of(found)
        reads.meets = snapshot.take_in
        tracer = Tracer(lambda tensor: id(tensor) in found.tensors, generators, reads, layouts, found.cached)
        tracer.lasting.arguments = {id(tensor): tensor for tensor in call.tensors}
        tracer.world.reads = reads
        watch = WatchFunctions(tracer, snapshot.gradients)
        if eager_reads is not None:
            watch, tracer.goes_on = GoingOn(tracer, snapshot.gradients, eager_reads), True
        snapshot.gradients_set = watch.grads_set
        run = TracedRun(program, call, found, reads, tracer, watch, snapshot, misses)
        is_shared, is_refused = has_company(), False
        try:
            if not is_shared:
                snapshot.mark_random_sources()
            made = _traced(run, way, is_shared=is_shared)
        except Refusal as refusal:
            is_refused = True
            # No name here: the exception would hold the frame that holds it.
            raise _told(refusal, run) from refusal.__cause__
        finally:
            call.ran.update(read_in(reads.ran))
            tracer.world.let_go()  # or each would keep the other, by the numbers of which something was read
            generators.note(reads)
            _undo(run, partial(_tell_apart, run, is_shared=is_shared))
            if is_refused:  # else once what it has read is let go
                forget_in_tables(tracer.tape.leaked())
            if generators.is_used and not generators.is_marking:
                # Out of `finally` on purpose: it takes the place of whatever an unmarked run came to, a refusal included.
                raise _Again(is_marking=True)
        return made, run


def _traced(run: TracedRun, way: _WayToTrace, *, is_shared: bool) -> Trace:
    run.numbers = stand_in_for_rates(run) if way.has_rates else []
    run.varying = stand_in_for_state(run)
    run.numbers += run.varying
    skipping = steps_may_be_skipped(run.tracer, run.snapshot)
    schedules = Schedules(run.tracer, run.found)
    errors = ErrorsOfSymbols()
    with (
        stand_in_for_arguments(run) as (args, kwargs),
        no_waiting(run.tracer),
        noticing(run),
        dynamo_off(),
        # Modes belong to a thread: the backward of a GPU's tensors must not go to another one.
        torch.autograd.set_multithreading_enabled(False),
        autocast_cache_apart(),
        skipping,
        told_of_the_trace(),
        arrays_become_tensors() if run.call.arrays else contextlib.nullcontext(),
        stepped_last(schedules),
        histories_given(run.tracer.lasting.check_history, note_line),
        numbers_answer(run.found, has_any=bool(run.numbers or run.call.numbers)),
        plain_functions(),
        ProductsAsEager(),
        run.snapshot.gradients.apart() if is_shared else contextlib.nullcontext(),
        mode_in_backward(run.watch),  # Python that a backward calls may do as much to a tensor
        run.tracer,
        run.watch,
        run.reads,
        errors.told() if way.hears_of_errors else contextlib.nullcontext(),
    ):
        result = _run(run, errors, args, kwargs)
        run_custom_backwards(run, with_history(run, result))
    _check_symbols(run, errors)
    run.tracer.lasting.finish()  # or it would count as what the arguments were
    _tell_apart(run, is_shared=is_shared)
    run.grads_read.update(run.watch.grads_read)
    run.tracer.tape.home = home_of(run.program)
    if run.tracer.tape.refusal is not None:  # the program swallowed it, or the trace went on behind it
        if isinstance(run.watch, GoingOn):
            _look_further(run, run.watch.first_run)
        raise Refusal(run.tracer.tape.refusal)
    if (run.given or run.numbers) and not way.hears_of_errors and may_have_handled(run.reads.code):
        raise _Again(hears_of_errors=True)
    check_global_state(run.snapshot, run.tracer.refuse, was_seeded=run.tracer.generators.any_was_set(run.reads))
    schedules.finish(result, run.reads)
    check_arrays(run)
    check_cached(run)
    run.tracer.tape.log.append(result_entry(result))
    return outcome_of(run, result, schedules)


def _run(run: TracedRun, errors: ErrorsOfSymbols, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        with SignalCheck():
            return run.program(*args, **kwargs)
    except (Refusal, Busy, KeyboardInterrupt):  # Ctrl-C ends the call
        raise
    except BaseException as error:
        errors.note(error, error.__traceback__)
        _check_symbols(run, errors)
        raise program_raised(error) from error


def _check_symbols(run: TracedRun, errors: ErrorsOfSymbols) -> None:
    """Have the program traced without its symbols, now or for a later call, where one has caused an error."""
    if errors.is_any and (run.given or run.varying):
        raise not_taken(run, errors)
    if errors.is_any and run.numbers:
        raise _Again(has_rates=False)


def _look_further(run: TracedRun, first_run: list[LoggedCall]) -> None:
    """Note what else is in the way of a run that went on to its end: what is looked for once nothing is refused."""
    tape = run.tracer.tape
    with contextlib.suppress(Refusal):
        check_global_state(run.snapshot, run.tracer.refuse, was_seeded=run.tracer.generators.any_was_set(run.reads))
    if (difference := first_difference(first_run, tape.log)) is not None:
        tape.refusals[difference] = None


def _told(refusal: Refusal, run: TracedRun) -> Refusal:
    """What to say of a run that ended with `refusal`."""
    tape = run.tracer.tape
    kind = TooEarly if tape.is_too_early else Refusal
    # The program may have turned a refusal into an exception of its own: while it ran, the first one counts.
    told = refusal if tape.refusal is None else kind(tape.refusal if tape.home is None else refusal.reason)
    told.counted, told.needed, told.may_last = refusal.counted, refusal.needed, refusal.may_last
    if isinstance(run.watch, GoingOn):
        last = () if isinstance(refusal, ProgramRaised) else (refusal.reason,)
        reasons = dict.fromkeys((*tape.refusals, *last, *not_in_a_replay(run.reads)))
        told.others = tuple(reason for reason in reasons if reason != told.reason)
    return told


def _with_guards(made: Trace, run: TracedRun) -> Trace:
    """The trace with guards over what the run read, which is there again as the run found it."""
    is_run_again = made.signature.kind is Kind.DIFFERENTIABLE
    try:
        signature, guarded = guards_of(run, made.signature)
        called, effects = called_in(made.log, run.reads), effects_of(run.reads)
    finally:
        run.reads.forget(but=run.found.kept if is_run_again else ())
    check_dead(run.dying)  # first: the other may look for garbage, which an eager call leaves there
    check_no_leak(run.tracer)
    signature = with_guards(signature, guarded, called)
    return replace(made, signature=signature, reads=run.reads if is_run_again else None, effects=effects)


@uninterrupted
def _undo(run: TracedRun, tell_apart: Callable[[], None]) -> None:
    """Put back what the run changed, and let go what it held; each step whatever the others raise."""
    # The last one added runs first: whose changes are whose is told while the changes are there.
    steps = Teardown()
    steps.add("having functions forget what they keep of the trace", partial(forget_cached, run))
    steps.add("letting go of whose changes are whose", partial(setattr, run.snapshot, "whose", None))
    steps.add("forgetting what the run called", run.called.clear)  # a module that the program made may go now
    steps.add("forgetting which optimizers stepped", run.stepped.clear)
    steps.add("forgetting what was watched", run.watch.forget)
    steps.add("forgetting tensors", run.tracer.forget)
    steps.add("putting back what the program changed", run.snapshot.restore)
    steps.add("putting back what the program assigned elsewhere", partial(put_back_stores, run))
    steps.add("taking in nothing more", partial(setattr, run.reads, "meets", None))  # which refers to the snapshot
    steps.add("putting back what autograd knows of lasting tensors", run.tracer.lasting.put_back)
    steps.add("telling whose changes are whose", tell_apart)
    steps.finish()


def _tell_apart(run: TracedRun, *, is_shared: bool) -> None:
    """From here on, what other threads have changed meanwhile is none of the program's changes."""
    if is_shared and run.snapshot.whose is None:
        run.snapshot.whose = whose_changes(run.program, run.call, run.snapshot, run.reads)
