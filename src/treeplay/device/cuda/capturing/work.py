"""From a body and its tensors to a graph that can be launched with other tensors.

captures in rounds ─▶ memory behind what it uses while it runs ─▶ instantiate ─▶ patcher ─▶ the launch function ─▶ CapturedGraph
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from treeplay.codegen import load_source
from treeplay.device.cuda.captured import BYTES_PER_NODE, CapturedGraph
from treeplay.device.cuda.capturing.rounds import CaptureFindings, Rounds, capture_in_rounds
from treeplay.device.cuda.capturing.settling import CapturedOutput, outputs_of, place_copies, settled
from treeplay.device.cuda.lane import Lane
from treeplay.device.cuda.launching.launch import emit_launch, weakly
from treeplay.device.cuda.launching.parts import (
    Copied,
    LaunchBlock,
    LaunchOutput,
    LaunchParts,
    Move,
    NotLaunched,
    Otherwise,
    Patched,
)
from treeplay.device.cuda.nodes.patch import build_patcher
from treeplay.device.protocol import Replay, Work
from treeplay.device.use import SAVED_BY_OPERATOR, Use
from treeplay.errors import InternalError
from treeplay.observe.events import log_event
from treeplay.relocate import Row, joined
from treeplay.torch_seam import allocator
from treeplay.values.block import OutputBlock
from treeplay.values.spec import TensorSpec


def capture_work(
    work: Work, tensors: Sequence[torch.Tensor], lane: Lane, plain: Replay, not_launched: NotLaunched, use: Use
) -> CapturedGraph:
    """Capture the body of `work` over `tensors`; executes nothing. Raises `CaptureFailed`, or what the body raises.

    `plain` runs the work as it is; it is called where a tensor lies so that the graph cannot read it. `not_launched` is
    called where a launch raised before the graph was launched. `use`: how much it was used before.
    """
    for in_space in (True, False):
        captured = capture_in_rounds(work, tensors, lane, in_space=in_space)
        try:
            results = outputs_of(captured)
            if settled(captured, results):
                return _instantiated(work, tensors, lane, captured, results, Otherwise(plain, not_launched), use)
        except BaseException:
            captured.made.drop()
            raise
        captured.made.drop()
        log_event(
            "recordings", f"{work.name}: something it made in a capture is still there: captured in the shared pool"
        )
    raise InternalError("memory of the shared pool cannot be had")


def _instantiated(
    work: Work,
    tensors: Sequence[torch.Tensor],
    lane: Lane,
    rounds: Rounds,
    results: Sequence[CapturedOutput],
    otherwise: Otherwise,
    use: Use,
) -> CapturedGraph:
    before = time.perf_counter()
    made, found, seconds = rounds.made, rounds.found, rounds.seconds
    place_copies(rounds, tensors, results)
    free_before = torch.cuda.mem_get_info(lane.device)[0]
    _instantiate(made.graph)
    taken = free_before - torch.cuda.mem_get_info(lane.device)[0]
    # The driver takes memory in large pieces, so most graphs seem to take none: then what they take on average counts.
    nodes = len(made.captured.nodes) if made.captured is not None else 0
    exec_bytes = max(taken, nodes * BYTES_PER_NODE)
    patcher = None
    rows: dict[int, Row] = {}
    if found.table is not None:
        patcher = build_patcher(made.graph.raw_cuda_graph(), made.graph.raw_cuda_graph_exec(), found.table)
        rows = {row.index: row for row in found.table.tensors if row.is_patchable}
    seconds["instantiate"] = time.perf_counter() - before
    addresses = [tensor.data_ptr() for tensor in tensors]
    captured = CapturedGraph(
        work, made, lane, found, rounds.buffers, rows, patcher, addresses, otherwise.plain, exec_bytes, seconds
    )
    parts = _parts(captured, tensors, results, otherwise)
    captured.copied_bytes_per_call = _copied_bytes(parts, found)
    captured.launch = load_source(emit_launch(parts, work.name))
    seconds["emit"] = time.perf_counter() - before - seconds["instantiate"]
    captured.use, use.saved = use, nodes * SAVED_BY_OPERATOR
    lane.hold(captured)
    return captured


def _instantiate(graph: torch.cuda.CUDAGraph) -> None:
    """Make it one that can be launched. Raises `torch.OutOfMemoryError` on a full GPU, where its caller may make room."""
    try:
        graph.instantiate()
    except RuntimeError as error:
        # torch tells it as it does any error of the runtime library's: this memory is not its allocator's.
        if "out of memory" not in str(error):
            raise
        raise torch.OutOfMemoryError(f"instantiating a graph: {error}") from error


def _parts(
    captured: CapturedGraph, tensors: Sequence[torch.Tensor], results: Sequence[CapturedOutput], otherwise: Otherwise
) -> LaunchParts:
    work, rows, patcher = captured.work, captured.rows, captured.patcher
    steady = tuple(at for at, tensor in enumerate(tensors) if at in work.state and tensor.numel())

    def is_inside(at: int) -> bool:
        return work.block is not None and at in work.block

    def mover(row: Row) -> Move:
        if patcher is None:
            raise InternalError("nothing can be moved without a patcher")
        return patcher.mover(row)

    def output(at: int, result: CapturedOutput) -> LaunchOutput:
        row = result.row
        if row is None or is_inside(at):
            return LaunchOutput(result.spec, 0, None, result.held)
        # Most gradients are never moved: writing their movers would take longer than the captures.
        move = lazily(lambda: mover(row)) if at in work.slots else mover(row)
        return LaunchOutput(result.spec, row.address, move, leaf=work.slots.get(at), clears=not work.is_opaque)

    return LaunchParts(
        lane=captured.lane,
        replay=allocator.replay_of(captured.made.graph),
        otherwise=otherwise,
        vector=work.vector,
        steady=steady,
        addresses=captured.addresses,
        # Weakly: `captured` keeps the launch function, and a cycle would keep the graph until garbage is collected.
        moved=weakly(captured.move_state),
        patched=tuple(
            Patched(at, row.address, mover(row), row.alignment, row.residue, at in work.mutated)
            for at, row in rows.items()
            if at not in work.state and row.sites  # without sites, the graph does not read it
        ),
        copied=tuple(Copied(at, buffer, at in work.mutated) for at, buffer in captured.buffers.items()),
        results=tuple(output(at, result) for at, result in enumerate(results)),
        align=aligned_copy,
        boxing=work.boxing,
        block=_block(work.block, results, mover),
    )


def _block(
    block: OutputBlock | None, results: Sequence[CapturedOutput], mover: Callable[[Row], Move]
) -> LaunchBlock | None:
    """The outputs that one allocation holds: where that begins, all words with their addresses follow, in one go."""
    if block is None:
        return None
    rows = [(row, begin) for at, begin in block.places if (row := results[at].row) is not None]
    device = results[block.places[0][0]].spec.device
    return LaunchBlock(block, device, mover(joined(rows)) if rows else lambda address: None)


def _copied_bytes(parts: LaunchParts, found: CaptureFindings) -> int:
    """What a launch copies: inputs to their buffers, and back where they are written; results that cannot move, by the graph
    and, where it holds them, once more out of it."""
    into = sum(TensorSpec.of(copied.buffer).nbytes * (1 + copied.is_mutated) for copied in parts.copied)
    return into + sum(
        result.spec.nbytes * ((at in found.cloned) + (result.held is not None))
        for at, result in enumerate(parts.results)
    )


def lazily(make: Callable[[], Move]) -> Move:
    """A mover that is made when it is first called."""
    made: Move | None = None

    def move(address: int) -> None:
        nonlocal made
        if made is None:
            made = make()
        made(address)

    return move


def aligned_copy(tensor: torch.Tensor, residue: int, modulus: int) -> torch.Tensor:
    """A copy of `tensor` at an address that leaves `residue` when divided by `modulus`."""
    spec = TensorSpec.of(tensor)
    room = torch.empty(spec.nbytes + modulus + tensor.element_size(), dtype=torch.uint8, device=tensor.device)
    shift = (residue - room.data_ptr()) % modulus
    copy = room[shift : shift + spec.nbytes].view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    return copy.copy_(tensor)
