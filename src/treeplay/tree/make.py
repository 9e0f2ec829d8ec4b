"""From a lowered program to work for a device, and from what the device recorded to a recording with its call function.

lowered, signature ─ make_work ▶ Work ─ device ▶ Recorded ─ make_recording ▶ Recording
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from treeplay.codegen import load_source
from treeplay.device.protocol import Capturable, Recorded, Replay, Work
from treeplay.lower.lowered import Lowered
from treeplay.torch_seam import dynamo
from treeplay.trace.call import Call
from treeplay.trace.opaque.program import OpaqueProgram
from treeplay.trace.restore.randomness import is_user_generator
from treeplay.trace.traced import Trace
from treeplay.tree.table import Recording
from treeplay.values.output import Fresh, values_used
from treeplay.values.place import How
from treeplay.values.plan import Plan
from treeplay.values.signature import Argument, Input, Signature, State
from treeplay.wrap.ambience import Ambience
from treeplay.wrap.apart import SharingCheck
from treeplay.wrap.emit import CallParts, emit_recording_call
from treeplay.wrap.of_signature import checked_tensors, with_classes
from treeplay.wrap.take_back import TakeBack

_UNNOTICED = ("inductor", "capture")  # lowerings that write behind autograd's back, which has to be told; as a GPU does


def make_work(traced: Trace, plan: Plan, lowered: Lowered, name: str) -> Work:
    """What the device has to know about the lowered callable."""
    signature = traced.signature
    return Work(
        name=name,
        run=lowered.run,
        body=lowered.body or _without_numbers(lowered.run),
        vector=lowered.vector,
        names=tuple(str(item) for item in signature.inputs),
        mutated=frozenset(signature.mutated),
        slots=slot_outputs(signature),
        tells=lowered.tells,
        draws=bool(traced.generators),
        state=state_of(signature),
        generators=tuple(generator for generator in traced.generators if is_user_generator(generator)),
        scratch_bytes=lowered.scratch_bytes,
        # Another number of threads adds up in another order; only a compiled graph's arithmetic is free to.
        is_small=plan.is_small and lowered.name == "inductor",
    )


def make_opaque_work(program: OpaqueProgram, name: str) -> Work:
    """What the device has to know about a program that is recorded as it runs. Each input counts as written."""
    signature, every = program.signature, frozenset(range(len(program.signature.inputs)))
    fixed = every - program.movable
    return Work(
        name=name,
        run=program.plain,
        body=program.run,
        names=tuple(str(item) for item in signature.inputs),
        mutated=every,
        state=state_of(signature) | fixed,  # an argument that shares memory is not followed either
        fixed=fixed,
        slots=slot_outputs(signature),
        generators=tuple(generator for generator in program.generators if is_user_generator(generator)),
        is_opaque=True,
    )


def state_of(signature: Signature) -> frozenset[int]:
    """The indices of inputs that are no arguments."""
    return frozenset(at for at, item in enumerate(signature.inputs) if not isinstance(item.source, Argument))


def slot_outputs(signature: Signature) -> dict[int, int]:
    """Outputs that only become the gradient of an input, which the graph does not read, and the index of that input."""
    used = Counter(values_used(signature.values))
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


def _without_numbers(run: Replay) -> Capturable:
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
    back: TakeBack | None = None,
    *,
    is_compiled: bool | None = None,
) -> Recording:
    """Write the call function around what was recorded. `is_compiled`: whether a compiled graph may come to be launched by it,
    before which more is checked and after which autograd is told what was written; by default as `lowered` says."""
    ambience = Ambience.now()
    is_compiled = lowered.name == "inductor" if is_compiled is None else is_compiled
    signature, checked = with_classes(signature, call, inputs), checked_tensors(signature, call, inputs)
    parts = CallParts(
        run=recorded.replay,
        check=dynamo.tensor_check(checked) if checked else None,
        is_apart=SharingCheck.of_arguments(signature, inputs)
        if lowered.name == "capture"
        else SharingCheck.of(signature, inputs, is_compiled=is_compiled),
        is_unnoticed=is_compiled or lowered.name in _UNNOTICED or any(tensor.is_cuda for tensor in inputs),
        back=back,
    )
    source = emit_recording_call(signature, ambience, parts, name=f"call {name}")
    call_function = load_source(source)
    run_of = weakref.ref(call_function)  # which holds what is recorded
    recorded.subscribe(lambda replay, _: set_run(run_of(), replay))
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
        launched=source.launched,
        seconds=seconds,
        details=lowered.details,
        plain_calls=lambda: recorded.plain_calls,
        set_run=lambda replay: set_run(run_of(), replay),
    )


def set_run(call_function: Callable[..., Any] | None, replay: Callable[..., Any]) -> None:
    """Have a call function, if it is still there, launch something else that does the same."""
    if call_function is not None:
        call_function.__globals__.update(run=replay)
