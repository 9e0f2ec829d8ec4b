"""Our own front end: program → Graph + Signature, on fake tensors, leaving no mark.

    survey ─▶ snapshot ─▶ symbolic numbers ─▶ run on fakes ─▶ slots and results ─▶ restore ─▶ Trace

The program's Python runs once; its tensors are never written. Whatever happens, the snapshot is put back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import get_ident
from typing import Any

import torch
import torch.fx
from torch.optim.optimizer import register_optimizer_step_pre_hook

from treeplay.errors import ProgramRaised, Refusal, TooEarly
from treeplay.guards.effects import effects_of
from treeplay.sandbox.generators import has_company
from treeplay.sandbox.interrupts import uninterrupted
from treeplay.sandbox.teardown import Teardown
from treeplay.torch_seam.autograd import histories_given
from treeplay.torch_seam.dynamo import dynamo_off
from treeplay.torch_seam.layers import register_call_hook
from treeplay.torch_seam.modes import native_layers, plain_functions
from treeplay.torch_seam.symbols import numpy_asks
from treeplay.trace.apart import reads_of, whose_changes
from treeplay.trace.arrays import GivenArray, arrays_become_tensors, asks_for_types
from treeplay.trace.averages import averages_without_asking
from treeplay.trace.call import Call, home_of
from treeplay.trace.conditions import make_signature, mentions
from treeplay.trace.differentiable import flat_results, is_differentiable
from treeplay.trace.found import Survey
from treeplay.trace.going_on import EagerReads, GoingOn
from treeplay.trace.guarded import called_in, guards_of, not_in_a_replay, stores_of_the_same, stores_unread, with_guards
from treeplay.trace.hooks import ours
from treeplay.trace.layouts import Answer, Question
from treeplay.trace.log import LoggedCall, first_difference, result_entry
from treeplay.trace.prune import prune
from treeplay.trace.raised import program_raised
from treeplay.trace.randomness import TrackedGenerators
from treeplay.trace.recordable import survey_to_record
from treeplay.trace.results import Results
from treeplay.trace.scalars import is_float, meet_numpys
from treeplay.trace.schedules import Schedules, stepped_last
from treeplay.trace.skipping import steps_may_be_skipped
from treeplay.trace.slots import find_writes
from treeplay.trace.snapshot import Snapshot
from treeplay.trace.surroundings import autocast_cache_apart
from treeplay.trace.traced import Trace, TracedRun
from treeplay.trace.tracer import Tracer
from treeplay.trace.turn import Busy, turn
from treeplay.trace.waiting import no_waiting
from treeplay.trace.watch import WatchFunctions
from treeplay.values.place import Binding, How
from treeplay.values.signature import Kind, Number
from treeplay.values.structure import as_written, paths


def trace(
    program: Callable[..., Any],
    call: Call,
    *,
    is_exact: bool = True,
    first_run: Iterable[LoggedCall] = (),
    eager_reads: EagerReads | None = None,
) -> Trace:
    """Run `program` once on fakes and write down what it does.

    `is_exact`: layers take the operators that they take eagerly, also where a compiler would rather have smaller ones.
    `first_run`: the log of an eager run; what an operator laid out there is laid out alike here.
    `eager_reads`: what that run read on the host, to go on with behind refusals; a `Refusal` then has the `others`.
    Raises `Refusal` if it cannot be recorded (`TooEarly` if a later call can be), and `Busy` if another thread traces for
    long. The caller's tensors, slots, random state and modes are as before, also after an exception.
    """
    layouts = dict(entry.layout for entry in first_run if entry.layout is not None)
    with turn():
        with native_layers() if is_exact else contextlib.nullcontext():
            try:
                made, run = _trace(program, call, layouts, eager_reads, is_marking=not has_company())
            except _UsesGenerators:
                made, run = _trace(program, call, layouts, eager_reads, is_marking=True)
        return _with_guards(made, program, call, run)


_NO_ARRAY = "pass torch.from_numpy(array), which shares its memory"


class _UsesGenerators(Exception):
    """The program calls torch's generators, which were not marked: it is to be traced again."""


def _trace(
    program: Callable[..., Any],
    call: Call,
    layouts: dict[Question, Answer],
    eager_reads: EagerReads | None,
    *,
    is_marking: bool,
) -> tuple[Trace, TracedRun]:
    found = survey_to_record(program, call)
    snapshot = Snapshot(found, call.tensors)
    with TrackedGenerators(found.generators.values(), is_marking=is_marking) as generators:
        return _trace_over(program, call, layouts, found, generators, snapshot, eager_reads)


def _trace_over(
    program: Callable[..., Any],
    call: Call,
    layouts: dict[Question, Answer],
    found: Survey,
    generators: TrackedGenerators,
    snapshot: Snapshot,
    eager_reads: EagerReads | None,
) -> tuple[Trace, TracedRun]:
    tracer = Tracer(lambda tensor: id(tensor) in found.tensors, generators, layouts)
    tracer.lasting.arguments = {id(tensor) for tensor in call.tensors}
    watch = WatchFunctions(tracer, snapshot.gradients)
    if eager_reads is not None:
        watch, tracer.goes_on = GoingOn(tracer, snapshot.gradients, eager_reads), True
    run = TracedRun(tracer, watch, found, snapshot, reads=reads_of(found))
    snapshot.gradients_set = run.watch.grads_set
    is_shared = has_company()
    tracer.reads = tracer.world.reads = run.reads
    try:
        made = _traced(program, call, run, is_shared=is_shared)
    except Refusal as refusal:
        raise _told(
            refusal, run
        ) from refusal.__cause__  # no name here: the exception would hold the frame that holds it
    finally:
        generators.note(run.reads)
        _undo(run, partial(_tell_apart, program, call, run, is_shared=is_shared))
        if generators.is_used and not generators.is_marking:
            raise _UsesGenerators
    return made, run


def _told(refusal: Refusal, run: TracedRun) -> Refusal:
    """What to say of a run that ended with `refusal`."""
    # The program may have turned a refusal into an exception of its own: the first one counts.
    tape = run.tracer.tape
    kind = TooEarly if tape.is_too_early else Refusal
    told = kind(tape.refusal) if tape.refusal is not None else refusal
    if isinstance(run.watch, GoingOn):
        last = () if isinstance(refusal, ProgramRaised) else (refusal.reason,)
        reasons = dict.fromkeys((*tape.refusals, *last, *not_in_a_replay(run.reads)))
        told.others = tuple(reason for reason in reasons if reason != told.reason)
    return told


def _with_guards(made: Trace, program: Callable[..., Any], call: Call, run: TracedRun) -> Trace:
    """The trace with guards over what the run read, which is there again as the run found it."""
    is_run_again = made.signature.kind is Kind.DIFFERENTIABLE
    try:
        guarded = guards_of(program, call, run, made.signature)
        called, effects = called_in(made.log, run.reads), effects_of(run.reads)
    finally:
        run.reads.forget(but=run.found.kept if is_run_again else ())
    _check_no_leak(run.tracer)
    signature = with_guards(made.signature, guarded, called)
    return dataclasses.replace(made, signature=signature, reads=run.reads if is_run_again else None, effects=effects)


@uninterrupted
def _undo(run: TracedRun, tell_apart: Callable[[], None]) -> None:
    """Put back what the run changed, and let go what it held; each step whatever the others raise."""
    steps = Teardown()
    steps.add(
        "forgetting whose changes are whose", partial(setattr, run.snapshot, "whose", None)
    )  # which refers to the run
    steps.add("forgetting what the run called", run.called.clear)  # a module that the program made may go now
    steps.add("forgetting which optimizers stepped", run.stepped.clear)
    steps.add("forgetting what was watched", run.watch.forget)
    steps.add("forgetting tensors", run.tracer.forget)
    steps.add("putting back what the program changed", run.snapshot.restore)
    steps.add("taking back the histories of arguments", run.tracer.lasting.take_history_back)
    steps.add("telling whose changes are whose", tell_apart)
    error = steps.run()
    if error is not None:
        raise error


def _tell_apart(program: Callable[..., Any], call: Call, run: TracedRun, *, is_shared: bool) -> None:
    """From here on, what other threads have changed meanwhile is none of the program's changes."""
    if is_shared and run.snapshot.whose is None:
        run.snapshot.whose = whose_changes(program, call, run.snapshot, run.reads)


def _traced(program: Callable[..., Any], call: Call, run: TracedRun, *, is_shared: bool = False) -> Trace:
    run.numbers = _make_numbers_symbolic(run)
    # Modes belong to a thread: the backward of a GPU's tensors must not go to another one.
    one_thread = torch.autograd.set_multithreading_enabled(False)
    skipping = steps_may_be_skipped(run.tracer, run.snapshot)
    schedules = Schedules(run.tracer, run.found)
    aside = (autocast_cache_apart(), numpy_asks(meet_numpys), plain_functions())
    apart = run.snapshot.gradients.apart() if is_shared else contextlib.nullcontext()
    with (
        _with_symbols(run, call) as (args, kwargs),
        no_waiting(run.tracer),
        _noticing(run),
        dynamo_off(),
        one_thread,
        aside[0],
        skipping,
        averages_without_asking(),
        arrays_become_tensors() if call.arrays else contextlib.nullcontext(),
        stepped_last(schedules),
        histories_given(run.tracer.lasting.check_history),
        aside[1],
        aside[2],
        apart,
        run.tracer,
        run.watch,
        run.reads,
    ):
        result = _run(program, args, kwargs)
    run.tracer.lasting.take_history_back()  # or it would count as what the arguments were
    _tell_apart(program, call, run, is_shared=is_shared)
    run.grads_read.update(run.watch.grads_read)
    run.tracer.tape.home = home_of(program)
    if run.tracer.tape.refusal is not None:  # the program swallowed it, or the trace went on behind it
        if isinstance(run.watch, GoingOn):
            _look_further(run, run.watch.first_run)
        raise Refusal(run.tracer.tape.refusal)
    _check_global_state(run.tracer, run.snapshot)
    schedules.finish(result, run.reads)
    if call.arrays and asks_for_types(run.reads.code):
        raise _refuse_arrays(call, "calls `type`, which tells it from what stands for it in a trace: use `isinstance`")
    run.tracer.tape.log.append(result_entry(result))
    tape = run.tracer.tape
    _check_given_numbers(run)
    if is_differentiable(run, result):
        if run.given:
            why = "it is a number that varies, and the program's results are differentiated by the caller"
            raise Refusal.of(f"argument {run.given[0].place.label}", why, "pass a tensor", None)
        if call.arrays:
            raise _refuse_arrays(call, "has results that the caller differentiates")
        if schedules.stepped:
            raise schedules.refuse()
        run.kind = Kind.DIFFERENTIABLE
        shown, outputs = flat_results(run, result)
        structure, refs, writes = shown.results, shown.refs, shown.writes
        is_inference = None
    else:
        run.kind = Kind.WHOLE_STEP if tape.uses_backward or run.stepped else Kind.INFERENCE
        results = Results(run.tracer, run.found)
        run.snapshot.assigned, run.snapshot.unread = list(stores_of_the_same(run)), stores_unread(run)
        # Results first: a tensor that is returned and stored is one output.
        structure, refs = results.of_call(result, run.snapshot.stored())
        writes = find_writes(run.snapshot, results, run.numbers)
        outputs, is_inference = results.outputs, results.is_inference
    tape.graph.output(tuple(outputs))
    prune(tape.graph)
    if run.snapshot.whose is not None and run.snapshot.whose.disturbed is not None:
        raise Busy  # another thread changed what the run has read: the next call reads it as it is then
    signature = dataclasses.replace(
        make_signature(run, call, structure, refs, writes, len(outputs)),
        is_inference=is_inference,
        schedules=tuple(schedules.stepped),
    )
    return Trace(tape.graph, signature, tape.log, tuple(tape.generators.values()))


def _run(program: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return program(*args, **kwargs)
    except Refusal:
        raise
    except Exception as error:
        raise program_raised(error) from error


def _with_symbols(run: TracedRun, call: Call) -> contextlib.AbstractContextManager[tuple[Any, Any]]:
    """The arguments, with a symbolic number in the place of each number that is an input, and what stands for each array."""
    symbols: dict[int, Any] = {}
    for at in sorted(call.numbers):
        place = Binding(How.ARGUMENT, call.leaves[at], at, None, as_written(paths(call.structure)[at]))
        run.given.append(Number(f"s{len(run.numbers) + len(run.given)}", place, call.leaves[at]))
        symbols[at] = run.tracer.add_scalar(run.given[-1].name, call.leaves[at])
    for at, array in call.arrays.items():
        symbols[at] = GivenArray(array, call.leaves[at], run.tracer.refuse)
    return call.with_leaves(symbols)


def _refuse_arrays(call: Call, what: str) -> Refusal:
    name = as_written(paths(call.structure)[next(iter(call.arrays))])
    return Refusal.of(f"argument {name}", f"it is a NumPy array, and the program {what}", _NO_ARRAY, None)


def _check_given_numbers(run: TracedRun) -> None:
    """A number among the arguments whose value the program needed while it ran is no input."""
    for number in run.given:
        for guard in run.tracer.world.guards.values():
            if not isinstance(guard.expected, bool) and mentions(guard.expression, number.name):
                raise Refusal.of(
                    f"argument {number.place.label}", "the program needs its value while it runs", "pass a tensor", None
                )


def _make_numbers_symbolic(run: TracedRun) -> list[Number]:
    """Put a symbolic number in the place of each float in the optimizers' parameter groups; a snapshot undoes it."""
    numbers: list[Number] = []

    def symbol(place: Binding, value: Any) -> Any:
        if not is_float(value):
            return value
        numbers.append(Number(f"s{len(numbers)}", place, value))
        return run.tracer.add_scalar(numbers[-1].name, float(value))

    for optimizer in run.found.optimizers:
        for here, group in run.found.groups_of(optimizer):
            for name, value in list(group.items()):
                place = here.child(How.ITEM, group, name, f"{here}[{name!r}]")
                if is_float(value):
                    group[name] = symbol(place, value)
                elif type(value) in (tuple, list) and any(map(is_float, value)):
                    items = [
                        symbol(place.child(How.ITEM, value, at, f"{place}[{at}]"), item)
                        for at, item in enumerate(value)
                    ]
                    if isinstance(value, list):
                        value[:] = items
                    else:
                        group[name] = tuple(items)
                        run.found.kept.append(value)
        for state in optimizer.state.values():
            if isinstance(state, dict):
                run.tracer.host_scalars |= {
                    id(value) for value in state.values() if isinstance(value, torch.Tensor) and value.dim() == 0
                }
    return numbers


@contextlib.contextmanager
def _noticing(run: TracedRun) -> Iterator[None]:
    """Note which modules are called and which optimizers step.

    The hooks are global: other threads run them too, and torch's frames hold the last one for as long as a module or an
    optimizer then takes."""
    thread, running = get_ident(), weakref.ref(run)

    def here() -> TracedRun | None:
        return running() if get_ident() == thread else None

    def on_call(module: torch.nn.Module, _: Any) -> None:
        run = here()
        if run is not None:
            run.called[id(module)] = module

    def on_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        run = here()
        if run is None:
            return
        run.stepped[id(optimizer)] = optimizer
        if not any(optimizer is known for known in run.found.optimizers):
            raise run.tracer.refuse(
                f"{type(optimizer).__name__}.step",
                "the optimizer is not found in the program's closure, globals or `self`",
                "make the optimizer reachable there, so that its state and its learning rate can be followed",
            )

    hooks = [register_call_hook(ours(on_call)), register_optimizer_step_pre_hook(ours(on_step))]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _look_further(run: TracedRun, first_run: list[LoggedCall]) -> None:
    """Note what else is in the way of a run that went on to its end: what is looked for once nothing is refused."""
    tape = run.tracer.tape
    with contextlib.suppress(Refusal):
        _check_global_state(run.tracer, run.snapshot)
    difference = first_difference(first_run, tape.log)
    if difference is not None:
        tape.refusals[difference] = None


def _check_global_state(tracer: Tracer, snapshot: Snapshot) -> None:
    source = "torch's generator" if tracer.generators.any_was_set() else snapshot.random_source_used()
    if source is not None:
        raise tracer.refuse(
            source,
            "the program draws from or seeds this generator in Python, so a recording would freeze what it drew",
            "draw with torch operators inside the program, or draw outside and pass a tensor; seed outside",
        )
    if snapshot.grad_mode_changed():
        raise tracer.refuse("grad mode", "the program leaves the grad mode changed", "use torch.no_grad() as a context")
    if snapshot.autocast_changed():
        raise tracer.refuse("autocast", "the program leaves autocast changed", "use torch.autocast(...) as a context")


def _check_no_leak(tracer: Tracer) -> None:
    if not tracer.tape.leaked():
        return
    gc.collect()
    if tracer.tape.leaked():
        raise tracer.refuse(
            "store",
            "the program keeps a tensor in a place that treeplay cannot see, such as a list, a set or a foreign object",
            "return the tensor, or keep it in an attribute or an entry that exists before the call",
        )
