"""The driver: every stage once, in order. The table of contents of the project.

jit             trace ─▶ compare ─▶ plan ┬▶ lower ─▶ record ─▶ wrap ─▶ Recording
                                         └▶ wrap: a program that the caller differentiates ─▶ Recording
torch.compile   shapes ─▶ passes before autograd ─▶ sizes ─▶ patterns ─▶ wrap ─▶ callable

wrap            trace ┬▶ joint passes ─▶ split ┬▶ passes after autograd ─▶ inner compiler ─▶ decide ─▶ record
                      └▶ joint passes ─────────┘                          (forward and backward, or inference)
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from treeplay.codegen import load_source
from treeplay.codegen.compiler import find_compiler, find_gpu_compiler
from treeplay.device.host import HostDevice
from treeplay.device.protocol import Device, Recorded
from treeplay.errors import CaptureFailed, Differing, InternalError, LoweringError, Refusal, TooEarly, TreeplayError
from treeplay.lower.aten import lower_aten
from treeplay.lower.aten.storage import writes_folded
from treeplay.lower.functional import draws_often
from treeplay.lower.inductor import keeps_draws_in_order, lower_inductor
from treeplay.lower.lowered import Lowered
from treeplay.lower.stream import lower_for_stream
from treeplay.observe import compile_records, counters, phase
from treeplay.observe.events import log_event
from treeplay.plan.answers import check_can_be_taken_back
from treeplay.plan.arena import plan_arena
from treeplay.plan.choose import choose
from treeplay.plan.devices import CPU, check_stays, device_of, move_state, settle
from treeplay.plan.draws import draws
from treeplay.plan.failing import MOST_BYTES, bytes_to_keep, to_keep, uncompiled
from treeplay.plan.work import is_small
from treeplay.sandbox.boundary import Boundary
from treeplay.settings import settings
from treeplay.torch_seam.dynamo import compile_lock
from treeplay.torch_seam.modes import without_function_modes
from treeplay.trace.call import Call
from treeplay.trace.going_on import EagerReads
from treeplay.trace.jit import trace
from treeplay.trace.log import LoggedCall, first_difference, other_operators
from treeplay.trace.opaque import Prepared, Rehearsed, prepare
from treeplay.trace.raised import program_raised
from treeplay.trace.traced import Trace
from treeplay.trace.turn import Busy
from treeplay.tree.all_sizes import ForAllSizes, MadeForAllSizes
from treeplay.tree.audit import Audit
from treeplay.tree.key import label_of
from treeplay.tree.make import current_inputs, make_opaque_work, make_recording, make_work, set_run
from treeplay.tree.make_for_all_sizes import make_for_all_sizes
from treeplay.tree.probation import Probation
from treeplay.tree.table import NextTier, NextWrapper, Recording
from treeplay.tree.tiers import compile_thread
from treeplay.values.failing import ToKeep
from treeplay.values.launch import LaunchFacts
from treeplay.values.overlap import overlapping, overlaps_itself
from treeplay.values.plan import Plan
from treeplay.values.record import RecordingMade
from treeplay.values.refusal import Reason
from treeplay.values.signature import Kind, Signature
from treeplay.wrap.differentiable import Wrap, Wrapped, emit_around, of_tensors_only, wrap_program
from treeplay.wrap.take_back import TakeBack

if TYPE_CHECKING:
    from treeplay.backend.options import Options
    from treeplay.backend.shapes import Program
    from treeplay.trace.any_size import Changing


def record(program: Callable[..., Any], call: Call, first_run: list[LoggedCall], *, lower: str, name: str) -> Recording:
    """Make a recording of `program` for calls like `call`. Has no effect on any tensor; raises `Refusal`."""
    seconds: dict[str, float] = {}
    try:
        if lower == "capture":
            recording = run_opaque(program, call, seconds, name=name)
        else:
            recording = run_stages(program, call, first_run, seconds, lower=lower, name=name)
    except (Differing, TooEarly):
        raise
    except Refusal as refusal:
        compile_records.add(_refused(name, call, seconds, refusal.reason), direction="refused")
        raise
    counters.add("recordings", recording.lowering)
    made = _made(name, call, recording)
    compile_records.add(made)
    log_event("recordings", f"{made}, {made.operators} operators")
    return recording


def run_stages(
    program: Callable[..., Any],
    call: Call,
    first_run: list[LoggedCall],
    seconds: dict[str, float],
    *,
    lower: str,
    name: str,
) -> Recording:
    """The stages in order; `seconds` takes the time of each as it ends."""
    front = run_front(program, call, first_run, seconds, lower=lower)
    recording = run_back(program, call, front, seconds, name=name)
    recording.audit, recording.draws = front.audit, draws(front.traced.graph)
    recording.effects = front.traced.effects
    if lower == "auto" and may_depend_on_clocks():  # whoever asks for a lowering has it
        recording.probation = Probation(device_for(front.device).stopwatch)
    return recording


def run_back(
    program: Callable[..., Any], call: Call, front: Front, seconds: dict[str, float], *, name: str
) -> Recording:
    """The stages from the plan on."""
    if front.traced.signature.kind is Kind.DIFFERENTIABLE:
        return run_differentiable(program, call, front, seconds, name=name)
    has_tiers = keeps_tiers(front)
    device = device_for(front.device)
    with _timed("lower", seconds), without_function_modes():
        lowered = _lower("aten", front, eager_random=True) if has_tiers else make_lowered(front)
    with _timed("record", seconds), without_function_modes():
        recorded = device.record(make_work(front.traced, front.plan, lowered, name))
    with _timed("wrap", seconds):
        signature = front.traced.signature
        inputs = move_state(signature, front.moving, front.inputs, front.device)
        moved = tuple(signature.inputs[index] for index in front.moving)
        is_compiled = has_tiers or lowered.name == "inductor"
        back = take_back(front, inputs, is_in_order=not is_compiled)
        recording = make_recording(
            signature, front.plan, lowered, recorded, call, inputs, seconds, name, moved, back, is_compiled=is_compiled
        )
        if has_tiers:
            compile_next = partial(compile_later, replace(front, inputs=[]), name, eager_random=settings.eager_random)
            recording.next_tier = NextTier(recorded, compile_next, device.stopwatch)
        return recording


def keeps_tiers(front: Front) -> bool:
    """Whether what is recorded now is compiled later, in the background."""
    return may_depend_on_clocks() and front.plan.lowerings == ("inductor", "aten")


def may_depend_on_clocks() -> bool:
    """Whether a call may be run by what turns out to be fastest: ways that round differently."""
    return settings.tiers == "background" and not torch.are_deterministic_algorithms_enabled()


def compile_later(front: Front, name: str, *, eager_random: bool) -> tuple[Lowered, Recorded]:
    """The stages `lower` and `record` of a compiled recording, in whichever thread; raises `LoweringError`."""
    with torch.cuda.device(front.device) if front.device.type == "cuda" else nullcontext():
        lowered = _lower("inductor", front, eager_random=eager_random)
    return lowered, device_for(front.device).record(make_work(front.traced, front.plan, lowered, name))


def run_differentiable(
    program: Callable[..., Any], call: Call, front: Front, seconds: dict[str, float], *, name: str
) -> Recording:
    """The stages after the plan for a program that the caller differentiates: it is run again, and wrapped."""
    has_tiers = keeps_tiers(front)
    lowering = "aten" if has_tiers else front.plan.lowerings[0]
    with _timed("lower", seconds):
        signature, tensors, wrapped = run_wrap(program, call, front, lowering=lowering)
        if has_tiers:
            from treeplay.backend.later import wrap_for_later

            _, _, later = run_wrap(program, call, front, partial(wrap_for_later, add=compile_thread.add))
    with _timed("wrap", seconds):
        operators = sum(node.op == "call_function" for node in front.traced.graph.nodes)
        on_the_host = LaunchFacts(str(front.device), "bound")
        back = take_back(front, (), is_in_order=False)
        source = emit_around(signature, call, tensors, wrapped, name=name, back=back)
        call_function = load_source(source)
        call_of = weakref.ref(call_function)
        recording = Recording(
            call=call_function,
            signature=signature,
            plan=front.plan,
            lowering=lowering,
            operators=operators,
            launch=lambda: wrapped.launch() or on_the_host,  # not `front`, which holds this call's tensors
            free=lambda: None,  # a result may still be waiting for its backward: what they hold goes with the last one
            source="\n".join((source.text, *wrapped.sources)),
            launched=source.launched,
            seconds=seconds,
            details={"backward": wrapped.backward},
            plain_calls=wrapped.plain_calls,
            set_run=lambda run: set_run(call_of(), run),
        )
        if has_tiers:
            acting = acting_of(front)
            recording.next_tier = NextWrapper(
                partial(_compile_wrapper, later, acting), partial(_adopt, source.text, later)
            )
        return recording


def _compile_wrapper(later: Wrapped, acting: frozenset[Any]) -> None:
    from treeplay.backend.acting import kept

    if later.compile is not None:
        with kept(acting):
            later.compile()


def _adopt(source: str, later: Wrapped, recording: Recording) -> None:
    """Have the calls of a recording go to a wrapper that is compiled by now. Calls whose backward is to come keep theirs."""
    if recording.set_run is None:
        return
    recording.lowering, recording.tier = "inductor", "Inductor's took the place of the operators one by one"
    recording.source = "\n".join((source, *later.sources))
    recording.details = {**recording.details, "backward": later.backward}
    launch, plain_calls = recording.launch, recording.plain_calls
    recording.launch = lambda: later.launch() or launch()
    recording.plain_calls = lambda: plain_calls() + later.plain_calls()
    recording.set_run(later.run)
    counters.add("tiers", "inductor")


def record_for_all_sizes(
    program: Callable[..., Any],
    call: Call,
    first_run: list[LoggedCall],
    changing: Changing,
    *,
    name: str,
) -> MadeForAllSizes:
    """The stages for calls like `call` whatever the sizes in `changing` are: compiling is left to any thread. Has no effect on
    any tensor; raises `Refusal`."""
    from treeplay.backend.program_any_size import trace_for_any_size
    from treeplay.trace.any_size import refusal

    seconds: dict[str, float] = {}
    front = run_front(program, call, first_run, seconds, lower="auto")
    if front.device != CPU or front.plan.lowerings[0] != "inductor":
        raise refusal(str(front.plan))

    with _timed("lower", seconds):
        signature, tensors = of_tensors_only(front.traced.signature, call, front.inputs)
        made = trace_for_any_size(program, call, signature, tensors, changing, acting_of(front), front.traced.log)
    return make_for_all_sizes(
        made.signature, front.plan, made.compile, call, changing, seconds, operators=made.operators, name=name
    )


def for_all_sizes(make: Callable[..., MadeForAllSizes]) -> ForAllSizes:
    """How a program gets recordings for all sizes, of which `make` makes one."""

    def prepare() -> None:
        from treeplay.backend.program_any_size import warm_up

        warm_up()

    def is_prepared() -> bool:
        return bool(getattr(sys.modules.get("treeplay.backend.program_any_size"), "is_warm", False))

    return ForAllSizes(make, prepare, is_prepared)


def run_wrap(
    program: Callable[..., Any], call: Call, front: Front, wrap: Wrap | None = None, *, lowering: str | None = None
) -> tuple[Signature, tuple[torch.Tensor, ...], Wrapped]:
    """The wrap stage of a differentiable program; raises `Refusal`.

    `wrap` makes its forward and backward: with the compilers of the backend, if no other is given. `lowering`: instead of the
    first of the plan.
    """
    check_stays(front.traced.signature, front.moving, front.device)
    from treeplay.backend.acting import kept
    from treeplay.backend.differentiable import wrap_flat

    signature, tensors = of_tensors_only(front.traced.signature, call, front.inputs)
    with kept(acting_of(front)):
        lowering, reads = lowering or front.plan.lowerings[0], front.traced.reads
        wrapped = wrap_program(program, call, signature, tensors, wrap or wrap_flat, lowering=lowering, reads=reads)
    return signature, tensors, wrapped


def acting_of(front: Front) -> frozenset[Any]:
    """The operators of a traced program that act."""
    from treeplay.backend.acting import acting_in

    return acting_in(front.traced.graph)


def compile_captured(program: Program, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """The stages of a graph of `torch.compile`, or of a flat function, in order; leaves no mark on the caller.

    Each of its graphs is recorded when it first runs on a GPU; the backward is compiled when it is first needed, under the
    options of its forward.
    """
    from treeplay.backend.job import Job  # with ahead-of-time tracing, which takes a while to import
    from treeplay.backend.passes import copy_of
    from treeplay.backend.shapes import normalised
    from treeplay.backend.surroundings import undisturbed
    from treeplay.backend.wrapped import uncompiled

    counters.add("graphs", "captured")
    spare = copy_of(program) if isinstance(program, torch.fx.GraphModule) else program
    try:
        with Boundary("compiling a graph", reasons=(TreeplayError,)), undisturbed():
            normal = normalised(program, inputs)
            return normal.around(compile_flat(normal.program, normal.inputs, options))
    except InternalError as error:
        job = Job(options, (), ())
        job.broken(error)
        return uncompiled(job, spare)


def compile_flat(program: Program, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """The stages of a program with flat inputs and a flat tuple of results."""
    from treeplay.backend.acting import acting_in, kept
    from treeplay.backend.any_size import for_any_size
    from treeplay.backend.inference_mode import in_inference_mode, leave_inference_mode
    from treeplay.backend.passes import run_before_autograd
    from treeplay.backend.patterns import with_patterns
    from treeplay.backend.sizes import changing_sizes, has_symbols, with_known_sizes, with_marks
    from treeplay.backend.surroundings import undisturbed
    from treeplay.backend.wrapped import unwrapped, wrapped

    gives_inference = False
    if isinstance(program, torch.fx.GraphModule):
        gives_inference = leave_inference_mode(program.graph, is_grad_enabled=torch.is_grad_enabled())
        program.recompile()
        program = run_before_autograd(program, inputs, options.before_autograd)
    acting = acting_in(program.graph) if isinstance(program, torch.fx.GraphModule) else frozenset()
    is_dynamic = has_symbols(inputs)
    # It is compiled for each of their values.
    numbers = [at for at, value in enumerate(inputs) if has_symbols([value]) and not isinstance(value, torch.Tensor)]

    changing = changing_sizes(program)
    if is_dynamic:
        with compile_lock(), undisturbed(), kept(acting):
            compiled = for_any_size(program, inputs, options)
        if compiled is not None:
            return with_marks(in_inference_mode(compiled) if gives_inference else compiled, changing)

    def compile_sized(inputs: Sequence[Any]) -> Callable[..., Any]:
        # Sizes that are new are compiled in a call, while Dynamo may trace in another thread: not beside each other, since
        # tracing replaces methods of modules.
        with compile_lock(), undisturbed(), kept(acting):
            compiled = wrapped(program, inputs, options, is_dynamic=is_dynamic, numbers=numbers)
            return in_inference_mode(compiled) if gives_inference else compiled

    def compile_patterns(inputs: Sequence[Any]) -> Callable[..., Any]:
        return with_patterns(inputs, compile_sized, as_it_is)

    def as_it_is() -> Callable[..., Any]:
        why = "inputs share memory that is no one storage of torch's, as that of a NumPy array, and one of them is written"
        with undisturbed():
            return unwrapped(program, options, Reason("write", why, "give each tensor memory of its own (`clone()`)"))

    return with_known_sizes(
        inputs,
        compile_patterns,
        lambda *args: program(*args),
        most=options.most_sizes,
        changing=changing,
    )


def run_opaque(program: Callable[..., Any], call: Call, seconds: dict[str, float], *, name: str) -> Recording:
    """The stages for a program that is recorded as it runs: nothing is traced, planned or lowered."""
    with _timed("prepare", seconds):
        prepared = prepare(program, call)
        device = device_for(prepared.device)
        opaque = rehearsed(prepared, device).program()
    with _timed("record", seconds):
        recorded = device.record(make_opaque_work(opaque, name))
    with _timed("wrap", seconds):
        plan, lowered = Plan(("capture",), "asked for"), Lowered("capture", opaque.plain)
        inputs = [prepared.tensors[at] for at in opaque.kept]
        return make_recording(opaque.signature, plan, lowered, recorded, call, inputs, seconds, name)


def rehearsed(prepared: Prepared, device: Device) -> Rehearsed:
    """Run the program in a recording that the device throws away."""
    try:
        return prepared.rehearsed(device.rehearse)
    except CaptureFailed as failed:
        raise Refusal(failed.reason) from failed
    except (Refusal, Busy):
        raise
    except Exception as error:
        raise program_raised(error, "being recorded") from error


@dataclass(frozen=True, slots=True)
class Front:
    """What the stages before the first compilation give: the trace, its device, today's inputs, and the plan.

    `moving`: indices of the inputs that are on the CPU and move to the device with the recording.
    """

    traced: Trace
    device: torch.device
    moving: tuple[int, ...]
    inputs: list[torch.Tensor]
    plan: Plan
    audit: Audit


def run_front(
    program: Callable[..., Any],
    call: Call,
    first_run: list[LoggedCall],
    seconds: dict[str, float],
    *,
    lower: str,
    eager_reads: EagerReads | None = None,
) -> Front:
    """The stages up to the plan, which compile and record nothing. `eager_reads`: to find what else is in the way behind a
    refusal."""

    def retrace(call: Call) -> Trace:
        return trace(program, call, is_exact=lower == "aten", first_run=first_run, eager_reads=eager_reads)

    with _timed("trace", seconds):
        traced = retrace(call)
    with _timed("compare", seconds):
        difference = first_difference(first_run, traced.log)
        if difference is None and call.numbers:
            # A symbol in the place of a number has another type, which the program may have asked for.
            difference = other_operators(retrace(replace(call, numbers=frozenset())).log, traced.log)
    if difference is not None:
        raise Differing(difference)
    audit = Audit(traced, retrace, seconds["trace"])
    with _timed("plan", seconds):
        device = device_of(traced)
        traced, moving = settle(traced, device)
        inputs = current_inputs(traced.signature, call)
        check_can_be_taken_back(traced, inputs)
        return Front(traced, device, moving, inputs, make_plan(traced, inputs, lower, device), audit)


def device_for(device: torch.device) -> Device:
    """What records there."""
    if device == CPU:
        return HostDevice()
    from treeplay.device.cuda.device import CudaDevice

    return CudaDevice(device)


def make_plan(traced: Trace, inputs: list[torch.Tensor], lower: str, device: torch.device) -> Plan:
    """Gather the facts and choose the lowering."""
    signature = traced.signature
    return choose(
        wanted=lower,
        compiler=(find_compiler() if device == CPU else find_gpu_compiler()).path,
        shared=overlapping(inputs, signature.mutated),
        is_folded=writes_folded(traced.graph) or any(overlaps_itself(inputs[index]) for index in signature.mutated),
        is_small=is_small(traced.graph),
        uncompiled=_why_uncompiled(traced.graph, device) if lower != "aten" else None,
    )


def _why_uncompiled(graph: torch.fx.Graph, device: torch.device) -> str | None:
    """Why compiled code would not fail, draw, or leave things, as the operators of a graph do; None if it does."""
    if settings.eager_random and draws_often(graph) and not keeps_draws_in_order():
        return (
            "random numbers are to be eager's, and this release of Inductor changes the order in which they are drawn"
        )
    node = uncompiled(graph)
    if node is not None:
        return f"{node.target} checks or does something that compiled code leaves out"
    keep = to_keep(graph, is_in_order=False)
    if device == CPU and keep is not None and not keep.unless and bytes_to_keep(graph, keep) > MOST_BYTES:
        return "an operator may fail on values, and too much is written to be taken back: operators run in order"
    return None


def take_back(front: Front, inputs: Sequence[torch.Tensor], *, is_in_order: bool) -> TakeBack | None:
    """What ends a call on the CPU whose operators fail; None where nothing can be taken back. On a GPU a failure of an
    operator is met after the launch, if at all, and not by the call, which can only read whether values passed checks."""
    if front.traced.signature.answer is not None:
        keep_all = ToKeep(front.traced.signature.mutated, draws=bool(front.traced.generators))
        return TakeBack(keep_all, front.traced.generators)
    keep = to_keep(front.traced.graph, is_in_order=is_in_order)
    if front.device != CPU or keep is None:
        return None
    if front.traced.signature.kind is Kind.DIFFERENTIABLE:  # arguments are written after the graph
        keep = replace(keep, written=())
    if any(overlaps_itself(inputs[at]) for at in keep.written):
        return None
    return TakeBack(keep, front.traced.generators)


def make_lowered(front: Front) -> Lowered:
    """Lower the graph by the first lowering of the plan that takes it; what the others said is kept in its details."""
    problems: list[str] = []
    for name in front.plan.lowerings:
        try:
            lowered = _lower(name, front, eager_random=settings.eager_random)
        except LoweringError as error:
            counters.add("lowering failed", name)
            problems.append(f"{name}: {error}")
        else:
            return replace(lowered, details={**lowered.details, "passed over": tuple(problems)})
    other = "" if "aten" in front.plan.lowerings else 'try lower="aten", or '
    raise Refusal.of("lower", "; ".join(problems), f"{other}keep the program eager")


def _lower(name: str, front: Front, *, eager_random: bool) -> Lowered:
    graph = front.traced.graph
    if name == "inductor":
        return lower_inductor(graph, device=front.device, eager_random=eager_random, is_small=front.plan.is_small)
    return lower_aten(graph, plan_arena(graph)) if front.device == CPU else lower_for_stream(graph, front.device)


@contextmanager
def _timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    with phase(f"treeplay.{stage}"):
        yield
    seconds[stage] = time.perf_counter() - start


def _made(name: str, call: Call, recording: Recording) -> RecordingMade:
    return RecordingMade(
        program=name,
        arguments=label_of(call),
        kind=recording.signature.kind.value,
        lowering=recording.lowering,
        plan=str(recording.plan),
        operators=recording.operators,
        seconds=tuple(recording.seconds.items()),
    )


def _refused(name: str, call: Call, seconds: dict[str, float], reason: Reason) -> RecordingMade:
    return RecordingMade(
        name, label_of(call), None, None, None, None, tuple(seconds.items()), str(reason), reason.where
    )
