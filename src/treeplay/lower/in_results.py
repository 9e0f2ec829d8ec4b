"""Operators that run as they are, and write into memory of gradients that are not made yet.

    mm ─▶ A ── gelu ─▶ B        A and B are not read any more when the gradient is made: they lie in its memory
    mm ─▶ gradient              its memory is there before the first operator

What is copied into a new gradient, as where `backward` accumulates, is computed in it.

Only operators that can write into given memory take part: convolutions, for example, allocate what they return.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from treeplay.device.protocol import Births
from treeplay.errors import LoweringError
from treeplay.lower.aten.memory import empty_like_spec
from treeplay.lower.aten.ops import filling, needs_only_memory
from treeplay.lower.aten.storage import Storage, survey_storages
from treeplay.lower.lifetimes import LEAST_BYTES
from treeplay.torch_seam.operators import OpOverload
from treeplay.torch_seam.schemas import EMPTY, returns_count
from treeplay.torch_seam.tensors import view_in_memory_of
from treeplay.trace.run.begins import BEGINS
from treeplay.values.arena import BufferPlace, places_inside
from treeplay.values.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class GivenMemory:
    """The memory that nodes write their results into, by their names, and copies that need not happen: the values are there."""

    of: Mapping[str, torch.Tensor] = field(default_factory=dict)
    elided: Collection[str] = frozenset()


class MemoryInResults:
    """Which operators of a traced graph write into memory of which results, all of one device. Those that are not
    called as the graph says do not take part."""

    def __init__(
        self, graph: torch.fx.Graph, device: torch.device, runs_as_it_is: Callable[[torch.fx.Node], bool]
    ) -> None:
        self._graph = graph
        self._device = device
        self._runs_as_it_is = runs_as_it_is
        self._found: dict[frozenset[int], _Places] = {}

    def make(self, births: Births) -> GivenMemory:
        """Allocates results that are rewritten, tells `births` of them, and gives views for what lies there."""
        if not births.results_first or not births.rewritten:
            return GivenMemory()
        if births.rewritten not in self._found:  # captures are compared: in each the same
            self._found[births.rewritten] = self._place(births.rewritten)
        found = self._found[births.rewritten]
        made: dict[int, torch.Tensor] = {}
        for storage in found.outer:
            before = births.now()
            memory = empty_like_spec(storage.birth.meta["spec"])
            births.born(memory, before)
            made[storage.buffer.id] = memory
        memories = {storage: (made[storage.buffer.id], 0) for storage in found.outer}
        memories |= {storage: (made[place.outer], place.offset) for storage, place in found.inside.items()}
        return GivenMemory(
            {
                node.name: view_in_memory_of(memory, begin, node.meta["spec"])
                for storage, (memory, begin) in memories.items()
                for node in storage.nodes
                if node is storage.maker or node.target in EMPTY or node in found.elided
            },
            {node.name for node, storage in found.elided.items() if storage in memories},
        )

    def _place(self, rewritten: Collection[int]) -> _Places:
        try:
            plan = survey_storages(self._graph)
        except LoweringError:  # something changes its size: what lies where is not known
            return _Places([], {}, {})
        returned: Any = self._graph.output_node().args[0]
        shown = [plan.of.get(node) for node in returned]  # each is a storage of its own
        able = [one for one in plan.storages if self._takes_memory(one)]
        outer = [one for one in able if one in shown and shown.index(one) in rewritten]
        # Such an operator counts from the beginning of all the memory, which for them is that of the result.
        fixed = plan.bases_of(self._graph, BEGINS)
        inner = {one.buffer.id: one for one in able if one not in shown and one not in fixed}
        places = places_inside([one.buffer for one in outer], [one.buffer for one in inner.values()])
        return _Places(
            outer,
            {inner[at]: place for at, place in places.items()},
            {node: plan.of[source] for node, source in plan.elided.items()},
        )

    def _takes_memory(self, storage: Storage) -> bool:
        """Whether the operator that makes it can be given its memory, all of which it fills."""
        node, op = storage.maker, storage.maker.target
        spec: TensorSpec = storage.birth.meta["spec"]
        is_whole = storage.birth is node and node.meta["offset"] == 0 and spec.nbytes == storage.nbytes
        return (
            is_whole
            and storage.is_plain
            and spec.device == self._device
            and spec.nbytes >= LEAST_BYTES
            and isinstance(op, OpOverload)
            and self._runs_as_it_is(node)
            and returns_count(op) == 1
            and needs_only_memory(op, node.args)
        )


@dataclass(frozen=True, slots=True)
class _Places:
    """Results whose memory is made first, what lies in which of them, and the storages that copies are not made for."""

    outer: list[Storage]
    inside: dict[Storage, BufferPlace]
    elided: dict[torch.fx.Node, Storage]


def write_into(memory: torch.Tensor, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Have an operator that `needs_only_memory` write its result there."""
    call = filling(op, args, memory)
    if call is not None:
        call.op(*call.args, **({**kwargs, call.outs[0]: memory} if call.outs else {}))
    return memory
