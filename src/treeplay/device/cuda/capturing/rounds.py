"""Captures of a body until everything is known that cannot move.

capture (decoys) ─▶ capture (other decoys) ─▶ capture (tensors where they are) ─▶ table of what can move
   └─ something cannot: it gets a buffer, or a captured copy, and all is captured again

Only the last capture is replayed. The others write addresses down and are gone before it begins.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from treeplay.device.cuda.capturing.attempt import Attempt, attempt_capture
from treeplay.device.cuda.capturing.decoys import make_decoys
from treeplay.device.cuda.capturing.history import device_ranges
from treeplay.device.cuda.lane import Lane
from treeplay.device.cuda.memory.pool import give_back_cache
from treeplay.device.cuda.memory.space import AddressSpace
from treeplay.device.cuda.nodes.calls import is_available
from treeplay.device.cuda.nodes.patch import own_nodes_of
from treeplay.device.cuda.nodes.reading import Shapes
from treeplay.device.cuda.nodes.verify import unfaithful_nodes
from treeplay.device.protocol import Work
from treeplay.device.turns import turns
from treeplay.errors import InternalError
from treeplay.relocate import Relocation, relocate
from treeplay.torch_seam.tensors import storage_of
from treeplay.values.nodes import CaptureNotes

_MOST_ROUNDS = 8  # each shows what cannot move; the last is made with a copy of everything
_NEVER_SETTLED = "captures went on showing other inputs and outputs that cannot move"
_NO_DRIVER = "the driver's library is not found, so addresses cannot be changed"


@dataclass(slots=True)
class CaptureFindings:
    """What captures have shown: inputs that need a `buffer` and outputs that need a captured copy, each with the reason."""

    buffered: dict[int, str] = field(default_factory=dict)
    cloned: dict[int, str] = field(default_factory=dict)
    table: Relocation | None = None
    why_fixed: str | None = None  # why nothing at all can move
    unfaithful: dict[int, str] = field(default_factory=dict)  # nodes that cannot be set, each with what went wrong
    shares_gradients: bool = True  # whether temporaries may lie in gradients that are not made yet

    def copy_everything(self, inputs: Iterable[int], outputs: Iterable[int]) -> None:
        """Move none of these: for a program of which each capture shows something new that cannot move."""
        self.buffered = dict.fromkeys(inputs, _NEVER_SETTLED) | self.buffered
        self.cloned = dict.fromkeys(outputs, _NEVER_SETTLED) | self.cloned


@dataclass(frozen=True, slots=True)
class Rounds:
    """What came of them: the capture to be replayed, what all have shown, the buffers it reads, and seconds by step."""

    made: Attempt
    found: CaptureFindings
    buffers: dict[int, torch.Tensor]
    seconds: dict[str, float]


def capture_in_rounds(work: Work, tensors: Sequence[torch.Tensor], lane: Lane, *, in_space: bool = True) -> Rounds:
    """Capture the body of `work` over `tensors`, which executes nothing: each in addresses of its own if it may be `in_space`,
    and there are such. Raises `CaptureFailed`, or what the body raises."""
    give_back_cache(lane.device)
    seconds: dict[str, float] = {}
    found = CaptureFindings(shares_gradients=in_space and work.tells is not None)
    buffers: dict[int, torch.Tensor] = {}
    for number in range(_MOST_ROUNDS):
        buffers = {at: buffers.get(at, _buffer(tensors[at])) for at in found.buffered}
        made = _capture_and_prove(work, tensors, lane, found, buffers, seconds, in_space=in_space)
        _ask_nodes(made, found)
        if not _learned(work, found):
            return Rounds(made, found, buffers, seconds)
        if found.shares_gradients and found.cloned.keys() & work.slots.keys():
            # The more lies in a gradient, the more kernels hold its address, and some hold leftovers that nobody reads: so
            # nothing is put there any more.
            found = CaptureFindings(shares_gradients=False)
        if number == _MOST_ROUNDS - 2:
            arguments = set(movable_of(work, tensors, found.buffered) or ()) - work.state
            found.copy_everything(arguments, range(len(made.outputs)))
        made.drop()
    raise InternalError("captures went on showing other things that cannot move")


def _capture_and_prove(
    work: Work,
    tensors: Sequence[torch.Tensor],
    lane: Lane,
    found: CaptureFindings,
    buffers: dict[int, torch.Tensor],
    seconds: dict[str, float],
    *,
    in_space: bool,
) -> Attempt:
    """The capture to be replayed, after two more with every movable tensor elsewhere; notes the table in `found`."""
    own = [work.vector.tensor] if work.vector is not None else []
    movable = movable_of(work, tensors, buffers)
    given = [buffers.get(at, tensor) for at, tensor in enumerate(tensors)]
    shapes: Shapes = {}
    # Reserved together, so that no two have an address in common.
    spaces: list[AddressSpace | None] = []
    try:
        for _ in range(3 if movable is not None else 1):
            spaces.append(lane.address_space() if in_space else None)
        for at in lodgers(tensors, movable or ()):
            if at not in work.state:
                # A decoy for each alone: in one storage, they would be taken for tensors that always move together.
                (given[at],) = make_decoys([tensors[at]], seed=0, room=_room(spaces[0]))
        before = time.perf_counter()
        others = []
        for seed, space in enumerate(spaces[1:], 1):
            elsewhere = list(given)
            decoys = make_decoys([given[at] for at in movable or ()], seed=seed, room=_room(space))
            for at, decoy in zip(movable or (), decoys, strict=True):
                elsewhere[at] = decoy
            others.append(_other(work, [*elsewhere, *own], lane, found, movable, shapes, space))
        seconds["proof"] = time.perf_counter() - before
        before = time.perf_counter()
        made = attempt_capture(
            work,
            [*given, *own],
            lane,
            cloned=found.cloned,
            rewritten=rewritten_of(work, found),
            movable=movable,
            shapes=shapes,
            space=spaces[0],
        )
        seconds["capture"] = time.perf_counter() - before
    except BaseException:
        for space in spaces:  # also those whose capture was dropped: closing them again does nothing
            if space is not None:
                lane.close(space)
        raise
    if made.captured is None:
        found.why_fixed = _NO_DRIVER
        return made
    before = time.perf_counter()
    try:
        found.table = relocate([made.captured, *others], ranges=device_ranges())
    except BaseException:
        made.drop()
        raise
    seconds["proof"] += time.perf_counter() - before
    return made


def _other(
    work: Work,
    tensors: Sequence[torch.Tensor],
    lane: Lane,
    found: CaptureFindings,
    movable: Sequence[int] | None,
    shapes: Shapes,
    space: AddressSpace | None,
) -> CaptureNotes:
    """What a capture shows whose tensors and memory lie elsewhere. It is dropped before the next one begins."""
    made = attempt_capture(
        work,
        tensors,
        lane,
        cloned=found.cloned,
        rewritten=rewritten_of(work, found),
        movable=movable,
        shapes=shapes,
        is_apart=True,
        space=space,
    )
    notes = made.captured
    with turns.taken_once():  # so that what it wrote down is gone before the next one begins
        made.drop()
    if space is None:
        give_back_cache(lane.device)
    if notes is None:
        raise InternalError("a capture was not read")
    return notes


def rewritten_of(work: Work, found: CaptureFindings) -> frozenset[int]:
    """The outputs in whose memory temporaries may lie before they are made: gradients, which the next launch writes again."""
    return frozenset(work.slots) if found.shares_gradients else frozenset()


def _room(space: AddressSpace | None) -> Callable[[int], int] | None:
    return space.room if space is not None else None


def movable_of(work: Work, tensors: Sequence[torch.Tensor], buffers: Collection[int]) -> list[int] | None:
    """The inputs whose address may go into the graph; None where graphs cannot be read."""
    if not is_available():
        return None
    return [at for at, tensor in enumerate(tensors) if at not in buffers and at not in work.fixed and tensor.numel()]


def lodgers(tensors: Sequence[torch.Tensor], among: Collection[int]) -> list[int]:
    """The tensors that share their storage with another one. Arguments that do may lie apart, or differently, next time."""
    users = Counter(storage_of(tensor) for tensor in tensors)
    return [at for at in among if users[storage_of(tensors[at])] > 1]


def _ask_nodes(made: Attempt, found: CaptureFindings) -> None:
    """Keep in place what lies in nodes that do not stay what they are when they are set to their own parameters."""
    if found.table is None:
        return
    graph = made.graph.raw_cuda_graph()
    found.unfaithful |= unfaithful_nodes(own_nodes_of(graph, found.table))
    if found.unfaithful:
        found.table = found.table.without(found.unfaithful)


def _learned(work: Work, found: CaptureFindings) -> bool:
    """Note what cannot move and needs another way; whether there is something new."""
    known = (len(found.buffered), len(found.cloned))
    if found.table is None:
        arguments = set(range(len(work.names))) - work.state
        found.buffered |= dict.fromkeys(arguments, str(found.why_fixed))
        return known[0] != len(found.buffered)
    for row in found.table.tensors:
        if not row.is_patchable and row.index not in work.state:
            found.buffered[row.index] = str(row.reason)
    for row in found.table.outputs:
        if not row.is_patchable and row.index not in found.cloned:
            found.cloned[row.index] = str(row.reason)
    return known != (len(found.buffered), len(found.cloned))


def _buffer(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
