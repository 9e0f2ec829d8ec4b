"""Captures a function three times with its inputs at three places, and makes the graph of the first capture movable.

    relocatable = capture(function, inputs)
    relocatable.table                       which words hold which address
    relocatable.move(inputs, outputs)       from here on it reads and writes these
    relocatable.graph.replay()

The recorder of the library does more (state, policies, failures); this is the bare path, for measuring it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from benchmarks.plugs import Plugs, most_alive_of, plan_plugs
from treeplay.device.cuda.capturing.capture import capturing
from treeplay.device.cuda.capturing.decoys import make_decoys
from treeplay.device.cuda.capturing.history import allocations, device_ranges
from treeplay.device.cuda.nodes.patch import Patcher, build_patcher
from treeplay.device.cuda.nodes.reading import read_nodes
from treeplay.device.cuda.nodes.verify import unfaithful_nodes
from treeplay.relocate import Relocation, Row, relocate
from treeplay.relocate.policy import MEASURED, Costs
from treeplay.values.nodes import CaptureNotes, Placed

Tensors = list[torch.Tensor]
Function = Callable[..., Sequence[torch.Tensor]]


@dataclass(slots=True, eq=False)
class Relocatable:
    """A graph that can be moved. `outputs`: what the captured call returned; `seconds`: what making it took."""

    graph: torch.cuda.CUDAGraph
    captures: list[CaptureNotes]
    table: Relocation
    patcher: Patcher
    outputs: Tensors
    unfaithful: dict[int, str]
    seconds: dict[str, float]

    def moves(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[tuple[Row, int]]:
        """What to move so that these are read and written, as far as that can be done."""
        rows = [(row, inputs[row.index].data_ptr()) for row in self.table.tensors]
        rows += [(row, outputs[row.index].untyped_storage().data_ptr()) for row in self.table.outputs]
        return [(row, address) for row, address in rows if row.is_patchable and row.accepts(address)]

    def move(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Read these inputs and write these outputs from here on."""
        self.patcher.move_many(self.moves(inputs, outputs))


def capture(function: Function, inputs: Tensors, *, congruent_bytes: int = 512, costs: Costs = MEASURED) -> Relocatable:
    """Warm `function` up and capture it. Executes nothing of it on `inputs` themselves."""
    stream = torch.cuda.Stream(inputs[0].device)
    warm_up(function, inputs, stream)
    started = time.perf_counter()
    session = Session(function, inputs[0].device, stream)
    for number in range(3):
        session.add(make_decoys(inputs, seed=number, congruent_bytes=congruent_bytes) if number else inputs)
    captured_at = time.perf_counter()
    table = relocate(session.seen, ranges=device_ranges())
    related_at = time.perf_counter()
    graph = session.graphs[0]
    graph.instantiate()
    instantiated_at = time.perf_counter()
    patcher = build_patcher(graph.raw_cuda_graph(), graph.raw_cuda_graph_exec(), table, costs=costs)
    built_at = time.perf_counter()
    unfaithful = unfaithful_nodes(patcher.nodes)
    seconds = {
        "captures": captured_at - started,
        "relocate": related_at - captured_at,
        "instantiate": instantiated_at - related_at,
        "build": built_at - instantiated_at,
        "verify": time.perf_counter() - built_at,
    }
    return Relocatable(graph, session.seen, table, patcher, session.outputs[0], unfaithful, seconds)


@dataclass(slots=True, eq=False)
class Session:
    """Captures of one function, one after another, into one pool. What was captured stays alive, so that addresses differ."""

    function: Function
    device: torch.device
    stream: torch.cuda.Stream
    pool: tuple[int, int] = field(default_factory=torch.cuda.graph_pool_handle)
    graphs: list[torch.cuda.CUDAGraph] = field(default_factory=list)
    seen: list[CaptureNotes] = field(default_factory=list)
    outputs: list[Tensors] = field(default_factory=list)
    inputs: list[Tensors] = field(default_factory=list)
    plugs: Plugs = field(default_factory=Plugs)

    def add(self, inputs: Tensors) -> None:
        """Capture it once more, with these inputs."""
        graph, number = torch.cuda.CUDAGraph(keep_graph=True), len(self.seen)
        places = placed_inputs(inputs)
        with (
            allocations(self.device, self.pool) as history,
            capturing(graph, device=self.device, pool=self.pool, stream=self.stream, gives_back_caches=False),
        ):
            guards = self.plugs.place(self.device, seed=number)
            outputs = owned(self.function(*inputs), inputs)
        guards.tensors.clear()
        if placed_inputs(inputs) != places:
            raise RuntimeError("the function gave an argument another place")
        nodes = read_nodes(graph.raw_cuda_graph())
        blocks = None if history.blocks is None else history.blocks[guards.count :]
        captured = CaptureNotes(nodes, places, placed_outputs(outputs), blocks)
        if not self.seen:
            self.plugs = plan_plugs(most_alive_of(history.entries), captured.outputs)
        self.graphs.append(graph)
        self.inputs.append(inputs)
        self.seen.append(captured)
        # Without a history nobody can tell outputs from intermediates: then let all of them return to where they were.
        self.outputs.append([] if history.blocks is None else outputs)


def owned(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Tensors:
    """The outputs that are not inputs or views of them."""
    given = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    return [output for output in outputs if output.untyped_storage().data_ptr() not in given]


def warm_up(function: Function, inputs: Tensors, stream: torch.cuda.Stream) -> None:
    """Run it on copies, on the stream of the captures."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function(*copies(inputs))
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def placed_inputs(tensors: Sequence[torch.Tensor]) -> tuple[Placed, ...]:
    """Where tensors lie, with the whole of their storages."""
    return tuple(
        Placed(index, tensor.data_ptr(), tensor.untyped_storage().nbytes(), tensor.untyped_storage().data_ptr())
        for index, tensor in enumerate(tensors)
    )


def placed_outputs(tensors: Sequence[torch.Tensor]) -> tuple[Placed, ...]:
    """Where the storages of tensors lie, each storage once."""
    storages = {
        tensor.untyped_storage().data_ptr(): (index, tensor) for index, tensor in reversed([*enumerate(tensors)])
    }
    return tuple(
        Placed(index, address, tensor.untyped_storage().nbytes())
        for address, (index, tensor) in sorted(storages.items(), key=lambda item: item[1][0])
        if address
    )


def copies(tensors: Sequence[torch.Tensor]) -> Tensors:
    """Tensors of the same values and layout elsewhere."""
    made = []
    for tensor in tensors:
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        with torch.no_grad():
            copy.copy_(tensor)
        made.append(copy.requires_grad_(tensor.requires_grad) if tensor.requires_grad else copy)
    return made


def like(tensors: Sequence[torch.Tensor]) -> Tensors:
    """New tensors of the same layout, with storages as long."""
    made = []
    for tensor in tensors:
        size = tensor.untyped_storage().nbytes()
        flat = torch.empty(max(size // tensor.dtype.itemsize, 1), dtype=tensor.dtype, device=tensor.device)
        made.append(flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()))
    return made
