"""Records bodies: the forwards in the given order, then the backwards in the opposite one, all in one pool.

    F1 ── F2 ── F3 ── B3 ── B2 ── B1        so that what a forward saves lives exactly until its backward

Nothing has run afterwards on CUDA, and nothing shows anywhere: whoever asked for the recordings commits them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from treeplay.errors import CaptureFailed, UsageError
from treeplay.graphs.body import Body, BodyRun, sequence_number_for
from treeplay.graphs.buffers import Buffers
from treeplay.graphs.graph import Graph, graph
from treeplay.graphs.inputs import OutsideMemory
from treeplay.graphs.order import Kept, PoolOrder
from treeplay.graphs.recorded import Backward, Forward, GradientsGiven, Outputs, RecordedBody
from treeplay.graphs.roster import Roster
from treeplay.graphs.side_streams import SideStreams
from treeplay.torch_seam.tensors import extent_of
from treeplay.values.memory import OutputMemory


@dataclass(frozen=True, slots=True)
class Manner:
    """How to record: where, and what is handed out."""

    device: torch.device
    pool: Any
    order: PoolOrder
    outputs: Outputs
    gradients: GradientsGiven


@dataclass(frozen=True, slots=True)
class EagerBody:
    """A body that runs eagerly, and why."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class PendingBody:
    """A body on the way: its forward is captured, and the history of `ran` waits for the backward."""

    body: Body
    ran: BodyRun
    to: tuple[tuple[str, torch.Tensor], ...]
    forward: Forward
    inputs: OutsideMemory  # what the forward has read and made


def record_all(bodies: Sequence[Body], manner: Manner) -> list[RecordedBody | EagerBody]:
    """Record every body, or say why it cannot be; other failures propagate, and nothing is left of what was recorded."""
    taken = [_take_forward(body, manner) for body in bodies]
    try:
        return _finish_all(taken, manner)
    except CaptureFailed:
        if manner.device.type != "cuda":
            raise
        taken.clear()
    # A backward breaks a capture if the accumulator of some leaf is still alive from before.
    return _finish_all([_take_forward(replace(body, has_stand_ins=True), manner) for body in bodies], manner)


def _finish_all(taken: list[PendingBody | EagerBody], manner: Manner) -> list[RecordedBody | EagerBody]:
    made = []
    while taken:
        made.append(_finish(taken.pop(), manner))
    return made[::-1]


def _take_forward(body: Body, manner: Manner) -> PendingBody | EagerBody:
    since = sequence_number_for(body.modes)
    before = [item._version for item in body.inputs]
    inputs = OutsideMemory()
    graph, ran = capture(manner, lambda: body.run(since), inputs)
    if isinstance(ran, EagerBody):
        return ran
    _check_roster(body.label, body.roster)
    written = tuple(index for index, item in enumerate(body.inputs) if item._version != before[index])
    to = tuple(body.differentiated(ran)) if ran.differentiable else ()
    aliased = Kept(_own_memory(ran.outputs, body)) if manner.outputs != "copy" else None
    return PendingBody(
        body,
        ran,
        to,
        Forward(
            replay=graph.replay,
            position=manner.order.place(aliased),
            inputs=Buffers(body.inputs),
            written=written,
            outputs=tuple(out.detach() for out in ran.outputs),
            aliased=aliased,
            packing=ran.packing,
            differentiable=ran.differentiable if to else (),
            kept=tuple(inputs.kept),
        ),
        inputs,
    )


def _own_memory(outputs: Sequence[torch.Tensor], body: Body) -> list[torch.Tensor]:
    """Those outputs that a replay writes, as far as can be told: not what was there before and is only passed on."""
    memory = OutputMemory(map(extent_of, (*body.roster.tensors, *body.inputs)))
    return [out.detach() for out in outputs if not memory.owners(extent_of(out))]


def _finish(taken: PendingBody | EagerBody, manner: Manner) -> RecordedBody | EagerBody:
    if isinstance(taken, EagerBody):
        return taken
    backward = _take_backward(taken, manner) if taken.to else None
    if isinstance(backward, EagerBody):
        return backward
    return RecordedBody(
        taken.body.label, taken.forward, backward, manner.order, outputs=manner.outputs, gradients=manner.gradients
    )


def _take_backward(taken: PendingBody, manner: Manner) -> Backward | EagerBody:
    body, ran, to = taken.body, taken.ran, taken.to
    incoming = [torch.zeros_like(ran.outputs[index]).detach() for index in ran.differentiable]
    inputs = OutsideMemory(after=taken.inputs)
    graph, gradients = capture(manner, lambda: body.gradients(ran, incoming, to), inputs)
    if isinstance(gradients, EagerBody):
        return gradients
    index_of = {id(item): index for index, item in enumerate(body.inputs)}
    used = [(item, gradient) for (_, item), gradient in zip(to, gradients, strict=True) if gradient is not None]
    used.sort(key=lambda pair: id(pair[0]) not in index_of)  # arguments first, otherwise in order
    return Backward(
        replay=graph.replay,
        position=manner.order.place(),
        incoming=Buffers(incoming),
        arguments=tuple(index_of[id(item)] for item, _ in used if id(item) in index_of),
        parameters=tuple(item for item, _ in used if id(item) not in index_of),
        reads=tuple({id(item): item for item in [*body.roster.parameters, *(item for item, _ in used)]}.values()),
        gradients=tuple(gradient.detach() for _, gradient in used),
        kept=tuple(inputs.kept),
    )


def capture(manner: Manner, body: Callable[[], Any], inputs: OutsideMemory) -> tuple[Any, Any]:
    """The graph of `body` and what `body` returned, or why it could not be captured.

    `inputs` gets to know what is read on a GPU; on the CPU the graph itself keeps it."""
    made = Graph(device=manner.device)
    streams: SideStreams | None = None
    try:
        with (
            _unwarned_if_empty(),
            graph(made, pool=manner.pool, capture_error_mode="thread_local"),
            _side_streams(manner.device) as streams,
            inputs if manner.device.type == "cuda" else contextlib.nullcontext(),
        ):
            result = body()
    except CaptureFailed as error:
        if streams is None or not streams.names:
            raise
        first = str(error).splitlines()[0]
        return None, EagerBody(f"it uses {len(streams.names)} streams of its own, and could not be captured: {first}")
    return made, result


@contextlib.contextmanager
def _unwarned_if_empty() -> Iterator[None]:
    """An identity has no work, and so has its gradient: no mistake here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*empty")
        yield


@contextlib.contextmanager
def _side_streams(device: torch.device) -> Iterator[SideStreams | None]:
    if device.type != "cuda":
        yield None
        return
    streams = SideStreams(device)
    with streams:
        yield streams
    # Not after an exception: then the capture is abandoned.
    streams.join()


def _check_roster(label: str, roster: Roster) -> None:
    if roster.is_unchanged():
        return
    changed = roster.difference()
    roster.put_back()
    raise UsageError(
        f"{label} replaces parameters or buffers while it runs ({changed}): a replay would go on reading the old ones. Write "
        "to them in place instead, for example with copy_()"
    )
