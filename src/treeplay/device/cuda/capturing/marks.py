"""When results were made in a capture: how many nodes there were before, and what else lay at their places.

    operator 7 begins    now()               ─▶ 120 nodes; from here on the allocator notes "7" beside each allocation
      scratch at 0x1000, freed; result at 0x1000
    operator 7 is done   born(result, 120)
    of(results, blocks, notes)               ─▶ the birth of each, but for two kinds of results:

- whose place an earlier allocation of the same operator had: its nodes cannot be told from theirs;
- that nobody told of: what is known of their place is the birth of something else, with another note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from treeplay.device.cuda import driver
from treeplay.device.cuda.memory.native import clear_stack
from treeplay.torch_seam import allocator
from treeplay.values.nodes import Allocation

Told = tuple[int, str]
"""How many nodes there were, and what was noted beside allocations."""


class Marks:
    """How many nodes there were when memory was allocated, by its address. The last that was made at an address counts."""

    def __init__(
        self, device: torch.device, *, results_first: bool = False, rewritten: frozenset[int] = frozenset()
    ) -> None:
        # The capture's stream, for good: the body may make another one current.
        self._stream = allocator.native("_cuda_getCurrentRawStream")(device.index)
        self._at: dict[int, Told] = {}
        self._operators = 0
        self.begins = clear_stack()
        self.results_first = results_first
        self.rewritten = rewritten

    def now(self) -> int:
        """How many nodes there are. What is allocated until the next question belongs together."""
        self._operators += 1
        allocator.note_allocations(str(self._operators))
        graph = driver.captured_graph(self._stream)
        nodes = driver.count_nodes(graph) if graph is not None else 0
        self.begins()
        return nodes

    def born(self, tensor: torch.Tensor, at: int) -> None:
        """Note a tensor in memory of its own."""
        self._at[tensor.untyped_storage().data_ptr()] = at, str(self._operators)

    def of(
        self, outputs: Sequence[torch.Tensor], blocks: Sequence[Allocation] | None, notes: Sequence[str]
    ) -> dict[int, int]:
        """What was noted of the outputs, by their index; `notes` is what the allocator noted beside each block."""
        places = {index: output.untyped_storage().data_ptr() for index, output in enumerate(outputs)}
        told = {index: self._at[place] for index, place in places.items() if place in self._at}
        if blocks is None:
            return {index: birth for index, (birth, _) in told.items()}
        return undisputed(told, places, blocks, notes)


def undisputed(
    told: Mapping[int, Told], places: Mapping[int, int], blocks: Sequence[Allocation], notes: Sequence[str]
) -> dict[int, int]:
    """The births of those that were told of themselves, and had their place for themselves while their operator ran."""
    newest = {block.address: at for at, block in enumerate(blocks)}
    kept = {}
    for index, (birth, note) in told.items():
        own = newest.get(places[index])
        if own is None or notes[own] != note:
            continue
        begun = next((at for at in range(own, -1, -1) if notes[at] != note), -1) + 1
        if not any(map(blocks[own].overlaps, blocks[begun:own])):
            kept[index] = birth
    return kept
