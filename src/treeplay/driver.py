"""The driver: every stage once, in order. The table of contents of the project.

trace ─▶ compare ─▶ plan ─▶ lower ─▶ record ─▶ wrap ─▶ Recording
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from treeplay.device.host import HostDevice
from treeplay.device.protocol import Recorded
from treeplay.errors import LoweringError, Refusal
from treeplay.facts.overlap import overlapping, overlaps_itself
from treeplay.facts.plan import Plan
from treeplay.facts.record import RecordingMade
from treeplay.facts.refusal import Reason
from treeplay.facts.signature import Argument, Constant, Signature
from treeplay.lower.aten import lower_aten
from treeplay.lower.compiler import find_compiler
from treeplay.lower.inductor import lower_inductor
from treeplay.lower.lowered import Lowered
from treeplay.observe import compile_records, counters, phase
from treeplay.plan.arena import plan_arena
from treeplay.plan.choose import choose
from treeplay.plan.work import is_small
from treeplay.settings import settings
from treeplay.trace.jit import Call, Trace, trace
from treeplay.trace.log import Entry, first_difference
from treeplay.tree.key import label_of
from treeplay.tree.table import Recording
from treeplay.wrap import torch_private
from treeplay.wrap.apart import Apart
from treeplay.wrap.emit import Ambience, Parts, emit_call
from treeplay.wrap.load import load_source


def record(program: Callable[..., Any], call: Call, first_run: list[Entry], *, lower: str, name: str) -> Recording:
    """Make a recording of `program` for calls like `call`. Has no effect on any tensor; raises `Refusal`."""
    seconds: dict[str, float] = {}
    try:
        recording = run_stages(program, call, first_run, seconds, lower=lower, name=name)
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
) -> Recording:
    """The stages in order; `seconds` takes the time of each as it ends."""
    traced, inputs, plan = run_front(program, call, first_run, seconds, lower=lower)
    with _timed("lower", seconds):
        lowered = make_lowered(traced, plan)
    # Another number of threads adds up in another order; only a compiled graph's arithmetic is free to.
    is_alone = plan.is_small and lowered.name == "inductor"
    with _timed("record", seconds):
        recorded = HostDevice().record(lowered.run, scratch_bytes=lowered.scratch_bytes, is_small=is_alone)
    with _timed("wrap", seconds):
        return make_recording(traced, plan, lowered, recorded, call, inputs, seconds, name)


def run_front(
    program: Callable[..., Any], call: Call, first_run: list[Entry], seconds: dict[str, float], *, lower: str
) -> tuple[Trace, list[torch.Tensor], Plan]:
    """The stages up to the plan, which compile and record nothing: the trace, today's inputs, and the plan."""
    with _timed("trace", seconds):
        traced = trace(program, call, is_exact=lower == "aten")
    with _timed("compare", seconds):
        difference = first_difference(first_run, traced.log)
    if difference is not None:
        raise Refusal(difference)
    check_devices(traced)
    inputs = current_inputs(traced.signature, call)
    with _timed("plan", seconds):
        return traced, inputs, make_plan(traced, inputs, lower)


def check_devices(traced: Trace) -> None:
    """Refuse a program with tensors elsewhere than on the CPU, by the first operator that makes or reads one."""
    for node in traced.graph.nodes:
        spec = node.meta.get("spec")
        if spec is not None and spec.device.type != "cpu":
            user = next(iter(node.users), node) if node.op == "placeholder" else node
            raise Refusal(
                Reason(
                    op=f"tensor on {spec.device}",
                    why="this version records programs on the CPU only",
                    advice="run it without jit there, or move the model and the data to the CPU",
                    where=user.meta.get("where"),
                )
            )


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


def make_plan(traced: Trace, inputs: list[torch.Tensor], lower: str) -> Plan:
    """Gather the facts and choose the lowering."""
    signature = traced.signature
    return choose(
        wanted=lower,
        compiler=find_compiler().path,
        shared=overlapping(inputs, signature.mutated),
        folded=[index for index in signature.mutated if overlaps_itself(inputs[index])],
        is_small=is_small(traced.graph),
    )


def make_lowered(traced: Trace, plan: Plan) -> Lowered:
    """Lower the graph by the first lowering of the plan that takes it; what the others said is kept in its details."""
    problems: list[str] = []
    for name in plan.lowerings:
        try:
            lowered = _lower(name, traced, plan)
        except LoweringError as error:
            counters.add("lowering failed", name)
            problems.append(f"{name}: {error}")
        else:
            return replace(lowered, details={**lowered.details, "passed over": tuple(problems)})
    other = "" if "aten" in plan.lowerings else 'try lower="aten", or '
    raise Refusal(Reason(op="lower", why="; ".join(problems), advice=f"{other}keep the program eager"))


def _lower(name: str, traced: Trace, plan: Plan) -> Lowered:
    if name == "inductor":
        return lower_inductor(traced.graph, eager_random=settings.eager_random, is_small=plan.is_small)
    return lower_aten(traced.graph, plan_arena(traced.graph))


def make_recording(
    traced: Trace,
    plan: Plan,
    lowered: Lowered,
    recorded: Recorded,
    call: Call,
    inputs: list[torch.Tensor],
    seconds: dict[str, float],
    name: str,
) -> Recording:
    """Write the call function around what was recorded."""
    signature, ambience = traced.signature, Ambience.now()
    is_compiled = lowered.name == "inductor"
    checked = call.tensors + [
        tensor
        for item, tensor in zip(signature.inputs, inputs, strict=True)
        if not isinstance(item.source, (Argument, Constant))
    ]
    parts = Parts(
        run=recorded.replay,
        check=torch_private.tensor_check(checked) if checked else None,
        is_apart=Apart.of(signature, inputs, is_compiled=is_compiled, shared=plan.shared),
        increment_version=torch_private.increment_version if is_compiled else None,
        set_grad_enabled=torch_private.set_grad_enabled,
        disable_autocast=torch_private.DisableAutocast,
    )
    source = emit_call(signature, ambience, parts, name=f"call {name}")
    return Recording(
        call=load_source(source),
        signature=signature,
        plan=plan,
        lowering=lowered.name,
        operators=lowered.operators,
        scratch_bytes=recorded.scratch_bytes,
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
