"""The driver: every stage once, in order. The table of contents of the project.

jit             trace ─▶ compare ─▶ plan ┬▶ lower ─▶ record ─▶ wrap ─▶ Recording
                                         └▶ wrap: a program that the caller differentiates ─▶ Recording
as it runs      prepare ─▶ record ─▶ wrap ─▶ Recording
all sizes       trace ─▶ compare ─▶ plan ─▶ trace with symbols ─▶ compile ─▶ wrap ─▶ Recording
torch.compile   shapes ─▶ passes before autograd ─▶ sizes ─▶ patterns ─▶ wrap ─▶ callable

wrap            trace ┬▶ joint passes ─▶ split ┬▶ passes after autograd ─▶ inner compiler ─▶ decide ─▶ record
                      └▶ joint passes ─────────┘                          (forward and backward, or inference)

What several of these lines have in common is in `record/`: what comes before the first compilation (`front`), and how its graph
is lowered, now or later (`lowered`), or wrapped for a caller that differentiates (`differentiable`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from treeplay.device.protocol import Device
from treeplay.device.registry import device_for
from treeplay.errors import CaptureFailed, Differing, InternalError, Refusal, TooEarly, TreeplayError
from treeplay.lower.lowered import Lowered
from treeplay.observe import compile_records, counters
from treeplay.observe.events import log_event
from treeplay.plan.devices import CPU, move_state
from treeplay.record.differentiable import acting_of, run_differentiable
from treeplay.record.front import Front, run_front
from treeplay.record.lowered import compile_later, make_first, make_lowered, may_depend_on_clocks
from treeplay.record.taking_back import take_back
from treeplay.record.timed import timed
from treeplay.sandbox.boundary import Boundary
from treeplay.sandbox.collection import no_collection
from treeplay.settings import settings
from treeplay.torch_seam.dynamo import compile_lock
from treeplay.torch_seam.modes import without_function_modes
from treeplay.torch_seam.schemas import draws
from treeplay.torch_seam.symbols import has_symbols
from treeplay.trace.call import Call
from treeplay.trace.observe import Log
from treeplay.trace.opaque.program import Prepared, Rehearsed, prepare
from treeplay.trace.raised import program_raised
from treeplay.trace.turn import Busy
from treeplay.tree.all_sizes.compile import ForAllSizes, MadeForAllSizes
from treeplay.tree.all_sizes.make import make_for_all_sizes
from treeplay.tree.keys.key import label_of
from treeplay.tree.make import make_opaque_work, make_recording, make_work
from treeplay.tree.table import NextTier, Recording
from treeplay.tree.worth.probation import Probation
from treeplay.values.plan import Plan
from treeplay.values.record import RecordingMade
from treeplay.values.refusal import Reason
from treeplay.values.signature import Kind
from treeplay.wrap.differentiable import of_tensors_only

if TYPE_CHECKING:
    from treeplay.backend.options import Options
    from treeplay.backend.shapes.flat import Program
    from treeplay.trace.any_size import Changing


def record(program: Callable[..., Any], call: Call, first_run: Log, *, lower: str, name: str) -> Recording:
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
    program: Callable[..., Any], call: Call, first_run: Log, seconds: dict[str, float], *, lower: str, name: str
) -> Recording:
    """The stages in order; `seconds` takes the time of each as it ends."""
    front = run_front(program, call, first_run, seconds, lower=lower)
    recording = run_back(program, call, front, seconds, name=name)
    recording.audit, recording.effects = front.audit, front.traced.effects
    recording.draws = any(draws(node.target, node.args, node.kwargs) for node in front.traced.graph.nodes)
    if lower == "auto" and may_depend_on_clocks():  # whoever asks for a lowering has it
        recording.probation = Probation(device_for(front.device).stopwatch)
    return recording


def run_back(
    program: Callable[..., Any], call: Call, front: Front, seconds: dict[str, float], *, name: str
) -> Recording:
    """The stages from the plan on."""
    if front.traced.signature.kind is Kind.DIFFERENTIABLE:
        return run_differentiable(program, call, front, seconds, name=name)
    device = device_for(front.device)
    with timed("lower", seconds), without_function_modes():
        first = make_first(front)
        lowered = make_lowered(front) if first is None else first
    with timed("record", seconds), without_function_modes():
        recorded = device.record(make_work(front.traced, front.plan, lowered, name))
    with timed("wrap", seconds), no_collection():  # as in a trace
        signature = front.traced.signature
        inputs = move_state(signature, front.moving, front.inputs, front.device)
        moved = tuple(signature.inputs[index] for index in front.moving)
        is_compiled = first is not None or lowered.name == "inductor"
        back = take_back(front, inputs, is_in_order=not is_compiled)
        recording = make_recording(
            signature, front.plan, lowered, recorded, call, inputs, seconds, name, moved, back, is_compiled=is_compiled
        )
        if first is not None:
            compile_next = partial(compile_later, replace(front, inputs=[]), name, eager_random=settings.eager_random)
            recording.next_tier = NextTier(recorded, compile_next, device.stopwatch)
        return recording


def run_opaque(program: Callable[..., Any], call: Call, seconds: dict[str, float], *, name: str) -> Recording:
    """The stages for a program that is recorded as it runs: nothing is traced, planned or lowered."""
    with timed("prepare", seconds):
        prepared = prepare(program, call)
        device = device_for(prepared.device)
        opaque = rehearsed(prepared, device).program()
    with timed("record", seconds):
        recorded = device.record(make_opaque_work(opaque, name))
    with timed("wrap", seconds):
        plan, lowered = Plan(("capture",), "asked for"), Lowered("capture", opaque.plain)
        inputs = [prepared.tensors[at] for at in opaque.kept]
        return make_recording(opaque.signature, plan, lowered, recorded, call, inputs, seconds, name)


def rehearsed(prepared: Prepared, device: Device) -> Rehearsed:
    """Run the program in a recording that the device throws away."""
    try:
        return prepared.rehearsed(device.rehearse)
    except CaptureFailed as failed:
        raise Refusal(failed.reason) from failed
    except (Refusal, Busy, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise program_raised(error, "being recorded") from error


def record_for_all_sizes(
    program: Callable[..., Any],
    call: Call,
    first_run: Log,
    changing: Changing,
    *,
    name: str,
) -> MadeForAllSizes:
    """The stages for calls like `call` whatever the sizes in `changing` are: compiling is left to any thread. Has no effect on
    any tensor; raises `Refusal`."""
    from treeplay.backend.shapes.program_any_size import trace_for_any_size
    from treeplay.trace.any_size import not_for_any_size

    seconds: dict[str, float] = {}
    front = run_front(program, call, first_run, seconds, lower="auto")
    if front.device != CPU or front.plan.lowerings[0] != "inductor":
        raise not_for_any_size(str(front.plan))
    if front.traced.has_repeats:
        raise not_for_any_size("it draws once more from a state of a generator that it puts back")

    with timed("lower", seconds):
        signature, tensors = of_tensors_only(front.traced.signature, call, front.inputs)
        results = [node.meta["spec"] for node in front.traced.graph.output_node().args[0]]  # type: ignore[union-attr]
        made = trace_for_any_size(
            program, call, signature, tensors, changing, acting_of(front), front.traced.log, results
        )
    return make_for_all_sizes(
        made.signature, front.plan, made.compile, call, changing, seconds, operators=made.operators, name=name
    )


def for_all_sizes(make: Callable[..., MadeForAllSizes]) -> ForAllSizes:
    """How a program gets recordings for all sizes, of which `make` makes one."""

    def prepare() -> None:
        from treeplay.backend.shapes.program_any_size import import_ahead

        import_ahead()

    def is_prepared() -> bool:
        return bool(getattr(sys.modules.get("treeplay.backend.shapes.program_any_size"), "is_warm", False))

    return ForAllSizes(make, prepare, is_prepared)


def compile_captured(program: Program, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """The stages of a graph of `torch.compile`, or of a flat function, in order; leaves no mark on the caller.

    Each of its graphs is recorded when it first runs on a GPU; the backward is compiled when it is first needed, under the
    options of its forward.
    """
    from treeplay.backend.inference_mode import following_inference_mode
    from treeplay.backend.job import Job  # with ahead-of-time tracing, which takes a while to import
    from treeplay.backend.passes import copy_of
    from treeplay.backend.shapes.flat import normalised
    from treeplay.backend.surroundings import undisturbed
    from treeplay.backend.wrapped import uncompiled

    counters.add("graphs", "captured")
    spare = copy_of(program) if isinstance(program, torch.fx.GraphModule) else program
    try:
        with Boundary("compiling a graph", reasons=(TreeplayError,)), undisturbed():
            normal = normalised(program, inputs)
            compiled = normal.around(compile_flat(normal.program, normal.inputs, options))
            return following_inference_mode(compiled, spare, options)
    except InternalError as error:
        job = Job(options, (), ())
        job.broken(error)
        return uncompiled(job, spare)


def compile_flat(program: Program, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """The stages of a program with flat inputs and a flat tuple of results."""
    from treeplay.backend.acting import acting_in, kept
    from treeplay.backend.checkpoints import with_real_checkpoints
    from treeplay.backend.inference_mode import in_inference_mode, leave_inference_mode
    from treeplay.backend.numbers import KnownNumbers
    from treeplay.backend.passes import run_before_autograd
    from treeplay.backend.recording.examine import nested_graphs
    from treeplay.backend.shapes.any_size import for_any_size
    from treeplay.backend.shapes.patterns import with_patterns
    from treeplay.backend.shapes.sizes import changing_sizes, with_known_sizes, with_marks
    from treeplay.backend.surroundings import undisturbed
    from treeplay.backend.wrapped import unwrapped, wrapped

    gives_inference = leave_inference_mode(program, is_grad_enabled=torch.is_grad_enabled())
    if isinstance(program, torch.fx.GraphModule):
        program = run_before_autograd(program, inputs, options.before_autograd)
    # The bodies of custom autograd functions, branches and loops are graphs of their own.
    acting = frozenset().union(*(acting_in(part.graph) for part in nested_graphs(program)))
    is_dynamic = has_symbols(inputs)
    # It is compiled for each of their values.
    numbers = [at for at, value in enumerate(inputs) if has_symbols([value]) and not isinstance(value, torch.Tensor)]
    known = KnownNumbers(program)

    changing = changing_sizes(program)
    compiled: Any = None
    if is_dynamic:
        with compile_lock(), undisturbed(), kept(acting, draws=options.draws_as_eager):
            compiled = for_any_size(program, inputs, options)

    def compile_sized(inputs: Sequence[Any], values: Mapping[int, float]) -> Callable[..., Any]:
        def compile_pattern(inputs: Sequence[Any]) -> Callable[..., Any]:
            nonlocal values
            # Sizes that are new are compiled in a call, while Dynamo may trace in another thread: not beside each other, since
            # tracing replaces methods of modules.
            with compile_lock(), undisturbed(), kept(acting, draws=options.draws_as_eager):
                compiled = wrapped(
                    program, inputs, options, is_dynamic=is_dynamic, numbers=numbers, known=known, values=values
                )
                # Another pattern comes in another call, and what is not known may be another number there.
                values = known.among(values)
                return in_inference_mode(compiled) if gives_inference else compiled

        return with_patterns(inputs, compile_pattern, as_it_is)

    def as_it_is() -> Callable[..., Any]:
        why = "inputs share memory that is no one storage of torch's, as that of a NumPy array, and one of them is written"
        with undisturbed():
            return unwrapped(program, options, Reason("write", why, "give each tensor memory of its own (`clone()`)"))

    plain = with_real_checkpoints(program)
    sized = with_known_sizes(inputs, compile_sized, plain, known, most=options.most_sizes, changing=changing)
    if compiled is None:
        return sized
    # Other calls are compiled as they come, when Dynamo takes no more guards.
    compiled.for_others.append(sized)
    return with_marks(in_inference_mode(compiled) if gives_inference else compiled, changing)


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
