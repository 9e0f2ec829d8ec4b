"""From the memory of a forward's results to its saved block: which of them lie there, and where.

results of a run, Returns ──▶ SavedBlock ┬▶ block: which new memory the device makes as one allocation
                                         └▶ layout: what the backward finds in it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treeplay.backend.recording.returns import ResultMaker, Returns
from treeplay.device.protocol import InBlock
from treeplay.trace.signature.returned import whole
from treeplay.values.block import OutputBlock, SavedLayout, SavedPart
from treeplay.values.output import OutputRef, SameAsInput, View, inputs_used, values_used
from treeplay.values.spec import TensorSpec

_WORTH_A_BLOCK = 2  # values; one alone is one allocation anyway


@dataclass(frozen=True, slots=True)
class SavedBlock:
    """The new memory that is made as one `block`, and the `layout` of the results from `first` to `end`, which only the
    backward sees. In a list of results, those of them that lie elsewhere come first, then the block, for the others; the layout
    is the last of all."""

    block: OutputBlock
    layout: SavedLayout
    first: int
    end: int

    def listed(self, refs: Sequence[OutputRef], result: ResultMaker, block: Any) -> list[Any]:
        """All results as the block has them."""
        found = []
        for at in self.layout.order(self.first, len(refs)):
            # What is saved beside a block: a view would keep the history of what it views.
            is_view = at is not None and self.first <= at < self.end and isinstance(refs[at], View)
            one = block if at is None else result(refs[at])
            found.append(result.detached(one) if is_view else one)
        return [*found, result.static(self.layout)]

    def spread(self, others: Iterable[Any], count: int) -> list[Any]:
        """The `count` outputs of the work, of which `others` lie elsewhere; None for each in the block."""
        left = iter(others)
        return [None if output in self.block else next(left) for output in range(count)]

    def parted(self, results: Sequence[Any], owners: Sequence[int]) -> InBlock:
        """What the work gives, from such a list with its layout; `owners`: the result that shows each new memory."""
        inside = len(self.layout.parts) - self.layout.apart
        order = self.layout.order(self.first, len(results) - 2 + inside)  # the block and the layout
        places = {at: place for place, at in enumerate(order)}
        others = [whole(results[places[at]]) for k, at in enumerate(owners) if k not in self.block]
        return InBlock((*others, results[places[None]]))


def plan_block(returns: Returns, results: Sequence[Any], inner: tuple[int, int]) -> SavedBlock | None:
    """The block of a forward whose results from `inner[0]` to `inner[1]` only its backward sees; None if one is of no use."""
    first, end = inner
    seen = {_memory_of(ref) for at, ref in enumerate(returns.refs) if not first <= at < end}
    found = [k for k in dict.fromkeys(map(_memory_of, returns.refs[first:end])) if k is not None and k not in seen]
    bases = {k: whole(results[returns.owners[k]]) for k in found}
    devices = Counter(base.device for base in bases.values() if base.numel())
    if not devices:
        return None
    device = devices.most_common(1)[0][0]
    sizes = {k: TensorSpec.of(base).nbytes for k, base in bases.items() if base.device == device and base.numel()}
    if len(sizes) < _WORTH_A_BLOCK:
        return None
    block = OutputBlock.of(sizes.items())
    begins = dict(block.places)
    parts = tuple(_part(ref, results[at], begins) for at, ref in enumerate(returns.refs[first:end], first))
    return SavedBlock(block, SavedLayout(parts, block.nbytes), first, end)


def _memory_of(ref: OutputRef) -> int | None:
    """The new memory that a result lies in."""
    return next(values_used([ref]), None)


def _part(ref: OutputRef, result: Any, begins: dict[int, int]) -> SavedPart | None:
    memory = _memory_of(ref)
    if memory is None or memory not in begins:
        return None
    begin = begins[memory] + int(result.storage_offset()) * result.element_size()
    return SavedPart(begin, replace(TensorSpec.of(result), requires_grad=False))


def returns_for_block(returns: Returns, layout: SavedLayout, first: int) -> Returns | None:
    """What a backward returns that takes a block, from what it returns where it takes values one by one, the first of them that
    may lie in a block at `first`; None if a result lies in one of these."""
    count = max(inputs_used(returns.refs), default=0) + 1
    places = {at: place for place, at in enumerate(layout.order(first, count))}
    refs: list[OutputRef] = []
    for ref in returns.refs:
        for index in inputs_used([ref]):
            at = places.get(index)
            if at is None:
                return None
            ref = replace(ref, of=SameAsInput(at)) if isinstance(ref, View) else SameAsInput(at)
        refs.append(ref)
    return Returns(tuple(refs), returns.owners)


def inputs_for_block(names: Sequence[Any], block: Any, layout: SavedLayout, first: int) -> list[Any]:
    """Something about each input of a backward, as one that takes a block has it."""
    return [block if at is None else names[at] for at in layout.order(first, len(names))]
