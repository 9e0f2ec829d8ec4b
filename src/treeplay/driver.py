"""The driver: every stage once, in order. The table of contents of the project.

trace ─▶ compare ─▶ plan ┬▶ lower ─▶ record ─▶ wrap ─▶ Recording
                         └▶ wrap: forward and backward of a program that the caller differentiates ─▶ Recording
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from treeplay.device.host import HostDevice
from treeplay.device.protocol import Body, Device, Recorded, Replay, Work
from treeplay.errors import CaptureFailed, LoweringError, Refusal, TooEarly
from treeplay.facts.launch import LaunchFacts
from treeplay.facts.overlap import overlapping, overlaps_itself
from treeplay.facts.place import How
from treeplay.facts.plan import Plan
from treeplay.facts.record import RecordingMade
from treeplay.facts.refusal import Reason
from treeplay.facts.signature import Argument, Built, Constant, Fresh, Input, Kind, Ref, Signature, State, View
from treeplay.generated import load_source
from treeplay.lower.aten import lower_aten
from treeplay.lower.compiler import find_compiler, find_gpu_compiler
from treeplay.lower.inductor import lower_inductor
from treeplay.lower.lowered import Lowered
from treeplay.lower.stream import lower_for_stream
from treeplay.observe import compile_records, counters, phase
from treeplay.plan.arena import plan_arena
from treeplay.plan.choose import choose
from treeplay.plan.devices import CPU, check_stays, device_of, move_state, settle
from treeplay.plan.work import is_small
from treeplay.settings import settings
from treeplay.trace.jit import Call, Trace, trace
from treeplay.trace.log import Entry, first_difference
from treeplay.trace.opaque import Prepared, prepare
from treeplay.trace.randomness import is_own
from treeplay.tree.key import label_of
from treeplay.tree.table import Recording
from treeplay.wrap import torch_private
from treeplay.wrap.apart import Apart, ApartArguments
from treeplay.wrap.differentiable import Wrap, Wrapped, emit_around, of_tensors_only, wrap_program
from treeplay.wrap.emit import Ambience, Parts, emit_call

_BUMPED = ("inductor", "capture")  # lowerings that write behind autograd's back, which has to be told


def record(
    program: Callable[..., Any], call: Call, first_run: list[Entry], *, lower: str, name: str, wrap: Wrap
) -> Recording:
    """Make a recording of `program` for calls like `call`. Has no effect on any tensor; raises `Refusal`.

    `wrap` makes the forward and the backward of a program whose results the caller differentiates.
    """
    seconds: dict[str, float] = {}
    try:
        if lower == "capture":
            recording = run_opaque(program, call, seconds, name=name)
        else:
            recording = run_stages(program, call, first_run, seconds, lower=lower, name=name, wrap=wrap)
    except TooEarly:
        raise
    except Refusal as refusal:
        compile_records.add(_refused(name, call, seconds, refusal.reason), direction="refused")
        raise
    counters.add("recordings", recording.lowering)
    compile_records.add(_made(name, call, recording))
    return recording


def run_stages(
    program: Callable[..., Any],
    call: Call,
    first_run: list[Entry],
    seconds: dict[str, float],
    *,
    lower: str,
    name: str,
    wrap: Wrap,
) -> Recording:
    """The stages in order; `seconds` takes the time of each as it ends."""
    front = run_front(program, call, first_run, seconds, lower=lower)
    if front.traced.signature.kind is Kind.DIFFERENTIABLE:
        return run_differentiable(program, call, front, seconds, name=name, wrap=wrap)
    with _timed("lower", seconds):
        lowered = make_lowered(front)
    with _timed("record", seconds):
        recorded = device_for(front.device).record(make_work(front, lowered, name))
    with _timed("wrap", seconds):
        signature = front.traced.signature
        inputs = move_state(signature, front.moving, front.inputs, front.device)
        moved = tuple(signature.inputs[index] for index in front.moving)
        return make_recording(signature, front.plan, lowered, recorded, call, inputs, seconds, name, moved)


def run_differentiable(
    program: Callable[..., Any], call: Call, front: Front, seconds: dict[str, float], *, name: str, wrap: Wrap
) -> Recording:
    """The stages after the plan for a program that the caller differentiates: it is run again, and wrapped."""
    lowering = front.plan.lowerings[0]
    with _timed("lower", seconds):
        signature, tensors, wrapped = run_wrap(program, call, front, wrap)
    with _timed("wrap", seconds):
        operators = sum(node.op == "call_function" for node in front.traced.graph.nodes)
        on_the_host = LaunchFacts(str(front.device), "bound")
        source = emit_around(signature, call, tensors, wrapped, shared=front.plan.shared, name=name)
        return Recording(
            call=load_source(source),
            signature=signature,
            plan=front.plan,
            lowering=lowering,
            operators=operators,
            launch=lambda: wrapped.launch() or on_the_host,  # not `front`, which holds this call's tensors
            free=lambda: None,  # a result may still be waiting for its backward: what they hold goes with the last one
            source="\n".join((source.text, *wrapped.sources)),
            seconds=seconds,
            details={"backward": wrapped.backward},
        )


def run_wrap(
    program: Callable[..., Any], call: Call, front: Front, wrap: Wrap
) -> tuple[Signature, tuple[torch.Tensor, ...], Wrapped]:
    """The wrap stage of a differentiable program; raises `Refusal`."""
    check_stays(front.traced.signature, front.moving, front.device)
    signature, tensors = of_tensors_only(front.traced.signature, front.inputs)
    return signature, tensors, wrap_program(program, call, signature, tensors, wrap, lowering=front.plan.lowerings[0])


def run_opaque(program: Callable[..., Any], call: Call, seconds: dict[str, float], *, name: str) -> Recording:
    """The stages for a program that is recorded as it runs: nothing is traced, planned or lowered."""
    with _timed("prepare", seconds):
        prepared = prepare(program, call)
        device = device_for(prepared.device)
        tensors = list(prepared.tensors)
        _rehearse(device, prepared)
        signature, kept = prepared.signature()
        # What autograd is told of as written; the recording itself takes every input to be.
        inputs = tuple(replace(item, is_mutated=at in prepared.counted) for at, item in enumerate(signature.inputs))
        signature = replace(signature, inputs=inputs)
    fixed = frozenset(range(len(inputs))) - frozenset(prepared.movable)
    with _timed("record", seconds):
        recorded = device.record(
            Work(
                name=name,
                run=prepared.plain,
                body=prepared.run,
                names=tuple(str(item) for item in signature.inputs),
                mutated=frozenset(range(len(inputs))),
                state=_state_of(signature) | fixed,  # an argument that shares memory is not followed either
                fixed=fixed,
                slots=slot_outputs(signature),
                generators=tuple(generator for generator in prepared.generators if is_own(generator)),
                is_opaque=True,
            )
        )
    with _timed("wrap", seconds):
        plan = Plan(("capture",), "asked for")
        lowered = Lowered("capture", prepared.plain)
        inputs_now = [tensors[at] for at in kept]
        return make_recording(signature, plan, lowered, recorded, call, inputs_now, seconds, name)


def _rehearse(device: Device, prepared: Prepared) -> None:
    try:
        device.rehearse(prepared.run, prepared.tensors)
    except CaptureFailed as failed:
        raise Refusal(failed.reason) from failed


def _state_of(signature: Signature) -> frozenset[int]:
    return frozenset(at for at, item in enumerate(signature.inputs) if not isinstance(item.source, Argument))


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


def run_front(
    program: Callable[..., Any], call: Call, first_run: list[Entry], seconds: dict[str, float], *, lower: str
) -> Front:
    """The stages up to the plan, which compile and record nothing."""
    with _timed("trace", seconds):
        traced = trace(program, call, is_exact=lower == "aten", first_run=first_run)
    with _timed("compare", seconds):
        difference = first_difference(first_run, traced.log)
    if difference is not None:
        raise Refusal(difference)
    with _timed("plan", seconds):
        device = device_of(traced)
        traced, moving = settle(traced, device)
        inputs = current_inputs(traced.signature, call)
        return Front(traced, device, moving, inputs, make_plan(traced, inputs, lower, device))


def device_for(device: torch.device) -> Device:
    """What records there."""
    if device == CPU:
        return HostDevice()
    from treeplay.device.cuda.device import CudaDevice

    return CudaDevice(device)


def current_inputs(signature: Signature, call: Call) -> list[torch.Tensor]:
    """The tensors that the graph's inputs stand for right now."""
    tensors = []
    for item in signature.inputs:
        if isinstance(item.source, Argument):
            tensors.append(call.leaves[item.source.index])
        elif isinstance(item.source, Constant):
            tensors.append(item.source.tensor)
        else:
            tensors.append(item.source.place.read())
    return tensors


def make_plan(traced: Trace, inputs: list[torch.Tensor], lower: str, device: torch.device) -> Plan:
    """Gather the facts and choose the lowering."""
    signature = traced.signature
    return choose(
        wanted=lower,
        compiler=(find_compiler() if device == CPU else find_gpu_compiler()).path,
        shared=overlapping(inputs, signature.mutated),
        folded=[index for index in signature.mutated if overlaps_itself(inputs[index])],
        is_small=is_small(traced.graph),
    )


def make_lowered(front: Front) -> Lowered:
    """Lower the graph by the first lowering of the plan that takes it; what the others said is kept in its details."""
    problems: list[str] = []
    for name in front.plan.lowerings:
        try:
            lowered = _lower(name, front)
        except LoweringError as error:
            counters.add("lowering failed", name)
            problems.append(f"{name}: {error}")
        else:
            return replace(lowered, details={**lowered.details, "passed over": tuple(problems)})
    other = "" if "aten" in front.plan.lowerings else 'try lower="aten", or '
    raise Refusal(Reason(op="lower", why="; ".join(problems), advice=f"{other}keep the program eager"))


def _lower(name: str, front: Front) -> Lowered:
    graph = front.traced.graph
    if name == "inductor":
        return lower_inductor(
            graph, device=front.device, eager_random=settings.eager_random, is_small=front.plan.is_small
        )
    return lower_aten(graph, plan_arena(graph)) if front.device == CPU else lower_for_stream(graph, front.device)


def make_work(front: Front, lowered: Lowered, name: str) -> Work:
    """What the device has to know about the lowered callable."""
    signature = front.traced.signature
    return Work(
        name=name,
        run=lowered.run,
        body=lowered.body or _without_numbers(lowered.run),
        vector=lowered.vector,
        names=tuple(str(item) for item in signature.inputs),
        mutated=frozenset(signature.mutated),
        slots=slot_outputs(signature),
        tells=lowered.tells,
        draws=bool(front.traced.generators),
        state=_state_of(signature),
        generators=tuple(generator for generator in front.traced.generators if is_own(generator)),
        scratch_bytes=lowered.scratch_bytes,
        # Another number of threads adds up in another order; only a compiled graph's arithmetic is free to.
        is_small=front.plan.is_small and lowered.name == "inductor",
    )


def slot_outputs(signature: Signature) -> dict[int, int]:
    """Outputs that only become the gradient of an input, which the graph does not read, and the index of that input."""
    used: Counter[int] = Counter()
    for ref in signature.refs:
        used.update(_outputs_of(ref))
    for write in signature.writes:
        for ref in write.value.refs if isinstance(write.value, Built) else (write.value,):
            used.update(_outputs_of(ref))
    leaves: dict[int, int] = {}
    read = set()
    for index, item in enumerate(signature.inputs):
        if isinstance(item.source, State):
            read.add(str(item.source.place))
            leaves[id(item.source.place.read_or(None))] = index
    return {
        write.value.index: leaves[id(write.place.holder)]
        for write in signature.writes
        if isinstance(write.value, Fresh)
        and write.place.how is How.GRAD
        and used[write.value.index] == 1
        and not write.value.requires_grad
        and id(write.place.holder) in leaves
        and str(write.place) not in read
    }


def _outputs_of(ref: Ref) -> list[int]:
    of = ref.of if isinstance(ref, View) else ref
    return [of.index] if isinstance(of, Fresh) else []


def _without_numbers(run: Replay) -> Body:
    return lambda tensors: run(tensors, ())


def make_recording(
    signature: Signature,
    plan: Plan,
    lowered: Lowered,
    recorded: Recorded,
    call: Call,
    inputs: list[torch.Tensor],
    seconds: dict[str, float],
    name: str,
    moved: tuple[Input, ...] = (),
) -> Recording:
    """Write the call function around what was recorded."""
    ambience = Ambience.now()
    is_compiled = lowered.name == "inductor"
    checked = call.tensors + [
        tensor
        for item, tensor in zip(signature.inputs, inputs, strict=True)
        if not isinstance(item.source, (Argument, Constant))
    ]
    parts = Parts(
        run=recorded.replay,
        check=torch_private.tensor_check(checked) if checked else None,
        is_apart=ApartArguments.of(signature, inputs)
        if lowered.name == "capture"
        else Apart.of(signature, inputs, is_compiled=is_compiled, shared=plan.shared),
        increment_version=torch_private.increment_version if lowered.name in _BUMPED else None,
        set_grad_enabled=torch_private.set_grad_enabled,
        disable_autocast=torch_private.DisableAutocast,
    )
    source = emit_call(signature, ambience, parts, name=f"call {name}")
    call_function = load_source(source)
    recorded.tell(lambda replay: call_function.__globals__.update(run=replay))
    return Recording(
        call=call_function,
        signature=signature,
        plan=plan,
        lowering=lowered.name,
        operators=lowered.operators,
        launch=recorded.facts,
        free=recorded.free,
        moved=moved,
        source=source.text,
        seconds=seconds,
        details=lowered.details,
    )


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
