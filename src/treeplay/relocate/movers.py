"""What moved between captures, and by how much: tensors, outputs, and the blocks that intermediates lived in.

A word that moved by the very distances by which one of them moved belongs to it. Tensors move by distances of their own;
blocks often move together, so for them the word must also lie inside.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from treeplay.relocate.memory import Stretches, merged
from treeplay.relocate.table import Who
from treeplay.values.nodes import Allocation, CaptureNotes, Placed
from treeplay.values.overlap import Interval

Deltas = tuple[int, ...]  # from the first capture to each later one

NEVER_MOVED = "it lay at the same address in every capture"
NO_HISTORY = "the allocations of its captures are not known"
OTHER_ALLOCATIONS = "its captures allocated differently"
NOT_ALLOCATED = "it was not allocated during the capture"
SHARED = "memory that another allocation used before partly overlaps its own"


@dataclass(frozen=True, slots=True)
class Mover:
    """A tensor or output that moved: where it lay at the first capture, and by how much it moved to the later ones.

    `birth`: the first node that can mean it, if that is known.
    """

    who: Who
    address: int
    span: Interval
    deltas: Deltas
    birth: int | None = None


@dataclass(slots=True)
class Movers:
    """All movers by their distances. `scratch` has, per distance, sorted spans that do not touch.

    `fixed`: tensors and outputs that cannot be moved, with the reason, known before any word is looked at.
    `leaders`: tensors of one storage moved as one; the first of them stands for the others, which are named here.
    """

    tensors: dict[Deltas, list[Mover]] = field(default_factory=lambda: defaultdict(list))
    outputs: dict[Deltas, list[Mover]] = field(default_factory=lambda: defaultdict(list))
    scratch: dict[Deltas, list[Interval]] = field(default_factory=dict)
    fixed: dict[Who, str] = field(default_factory=dict)
    leaders: dict[int, int] = field(default_factory=dict)
    _stretches: dict[tuple[str, Deltas], Stretches[Mover]] = field(default_factory=dict)  # of those that moved alike

    def all(self) -> list[Mover]:
        """Tensors and outputs."""
        return [mover for by in (self.tensors, self.outputs) for movers in by.values() for mover in movers]

    def owners(self, value: int, deltas: Deltas, node: int) -> list[Mover]:
        """The tensors and outputs that a word of a node may belong to which had `value` first and moved by `deltas`.

        What alone moved by these distances is told by them, wherever the word points: a base less an offset lies outside.
        """
        found: Sequence[Mover] = self.tensors.get(deltas, ())
        if len(found) > 1:
            found = self._holding(value, "tensors", deltas, found)
        outputs: Sequence[Mover] = self.outputs.get(deltas, ())
        if len(outputs) > 1 or deltas in self.scratch:
            outputs = self._holding(value, "outputs", deltas, outputs)
        return [*found, *(mover for mover in outputs if mover.birth is None or mover.birth <= node)]

    def _holding(self, value: int, kind: str, deltas: Deltas, movers: Sequence[Mover]) -> list[Mover]:
        """Those of all of a kind that moved by `deltas`, of whom there may be hundreds, in which a word of the first capture
        points."""
        known = self._stretches.get((kind, deltas))
        if known is None:
            known = self._stretches[kind, deltas] = Stretches((*mover.span, mover) for mover in movers)
        return list(known.holding(value))

    def is_scratch(self, value: int, deltas: Deltas) -> bool:
        """Whether such a word may point into an intermediate, or near one where nothing else moved by these distances."""
        is_alone = deltas in self.scratch and deltas not in self.tensors and deltas not in self.outputs
        return is_alone or self._scratch_distance(value, deltas) < 0

    def ends_scratch(self, value: int, deltas: Deltas) -> bool:
        """Whether such a word may be the first address after an intermediate. What starts there has a better claim."""
        return self._scratch_distance(value, deltas) == 0

    def _scratch_distance(self, value: int, deltas: Deltas) -> int:
        """How far behind the end of the last intermediate that starts before it a value lies; negative: inside."""
        spans = self.scratch.get(deltas, ())
        # No end is as large: this finds the last span that starts at `value` or before.
        index = bisect_right(spans, (value, 1 << 64)) - 1
        # 1: behind all of them, and at no end.
        return value - spans[index][1] if index >= 0 else 1


def find_movers(captures: Sequence[CaptureNotes]) -> Movers:
    """The movers of at least two captures of the same program."""
    movers = Movers()
    storages: dict[tuple[int, Deltas], int] = {}
    for placed in zip(*(capture.tensors for capture in captures), strict=True):
        first, deltas = placed[0], _deltas([place.address for place in placed])
        leader = storages.setdefault((first.start, deltas), first.index)
        if leader == first.index:
            _add(movers, movers.tensors, ("tensor", first.index), placed, (first.start, first.end))
        else:
            movers.leaders[first.index] = leader
    reason = _why_blocks_are_unknown(captures)
    if reason is not None:
        movers.fixed |= {("output", output.index): reason for output in captures[0].outputs}
        return movers
    _add_blocks(movers, captures)
    return movers


def _add_blocks(movers: Movers, captures: Sequence[CaptureNotes]) -> None:
    sequences = [capture.blocks or () for capture in captures]
    deltas = [_deltas([block.address for block in blocks]) for blocks in zip(*sequences, strict=True)]
    blocks = sequences[0]
    taken: set[int] = set()
    last = [_last_blocks(capture) for capture in captures]
    for placed in zip(*(capture.outputs for capture in captures), strict=True):
        who: Who = ("output", placed[0].index)
        own = _block_of(placed, last)
        if own is None:
            movers.fixed[who] = NOT_ALLOCATED
            continue
        is_born = placed[0].birth is not None
        if not is_born and _shares(own, blocks, deltas):
            movers.fixed[who] = SHARED
            continue
        _add(movers, movers.outputs, who, placed, (blocks[own].address, blocks[own].end))
        # Without a birth, what lay in the output's place before moved as it did, and would make each of its words ambiguous.
        taken |= {own} if is_born else {at for at in range(len(blocks)) if _moves_with(at, own, blocks, deltas)}
    scratch: dict[Deltas, list[Interval]] = defaultdict(list)
    for index, block in enumerate(blocks):
        if any(deltas[index]) and index not in taken:
            scratch[deltas[index]].append((block.address, block.end))
    movers.scratch = {moved: merged(spans) for moved, spans in scratch.items()}


def _why_blocks_are_unknown(captures: Sequence[CaptureNotes]) -> str | None:
    if any(capture.blocks is None for capture in captures):
        return NO_HISTORY
    sizes = {tuple(block.nbytes for block in capture.blocks or ()) for capture in captures}
    return OTHER_ALLOCATIONS if len(sizes) > 1 else None


def _add(movers: Movers, where: dict[Deltas, list[Mover]], who: Who, placed: Sequence[Placed], span: Interval) -> None:
    deltas = _deltas([place.address for place in placed])
    if any(deltas):
        where[deltas].append(Mover(who, placed[0].address, span, deltas, placed[0].birth))
    else:
        movers.fixed[who] = NEVER_MOVED


def _deltas(addresses: Sequence[int]) -> Deltas:
    return tuple(address - addresses[0] for address in addresses[1:])


def _last_blocks(capture: CaptureNotes) -> dict[int, int]:
    """By where outputs start: the last allocation there. One pass over the allocations, of which there are thousands."""
    starts = sorted({place.start for place in capture.outputs})
    last: dict[int, int] = {}
    for index, block in enumerate(capture.blocks or ()):
        for start in starts[bisect_left(starts, block.address) : bisect_left(starts, block.end)]:
            last[start] = index
    return last


def _block_of(placed: Sequence[Placed], last: Sequence[dict[int, int]]) -> int | None:
    """The allocation that an output lives in: in each capture the last one at its place; None if they disagree."""
    found = {blocks.get(place.start) for place, blocks in zip(placed, last, strict=True)}
    return found.pop() if len(found) == 1 else None


def _moves_with(index: int, own: int, blocks: Sequence[Allocation], deltas: Sequence[Deltas]) -> bool:
    """Whether a block cannot be told from an output's: it lay in the same place and moved alike. True of its own."""
    return deltas[index] == deltas[own] and blocks[index].overlaps(blocks[own])


def _shares(own: int, blocks: Sequence[Allocation], deltas: Sequence[Deltas]) -> bool:
    """Whether something that cannot be told from an output's block is not wholly inside it."""
    block, start, end, moved = blocks[own], blocks[own].address, blocks[own].end, deltas[own]
    return any(
        deltas[index] == moved and other.overlaps(block) and not (start <= other.address and other.end <= end)
        for index, other in enumerate(blocks)
    )
