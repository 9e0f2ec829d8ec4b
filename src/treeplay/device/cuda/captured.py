"""From a body and its tensors to a graph that can be launched with other tensors.

capture (tensors where they are) ─▶ capture (decoys) ─▶ capture (other decoys) ─▶ table of what can move
   └─ something cannot: it gets a buffer, or a captured copy, and all is captured again
─▶ instantiate ─▶ patcher ─▶ the launch function
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.codegen import load_source
from treeplay.device.cuda.attempt import Attempt, attempt
from treeplay.device.cuda.decoys import make_decoys
from treeplay.device.cuda.history import device_ranges
from treeplay.device.cuda.lane import Lane, Unplaced, union_bytes
from treeplay.device.cuda.launch import (
    Copied,
    LaunchOutput,
    LaunchParts,
    Move,
    NotLaunched,
    Otherwise,
    Patched,
    disable,
    emit_launch,
    launches_of,
    weakly,
)
from treeplay.device.cuda.node_calls import is_available
from treeplay.device.cuda.nodes import Shapes
from treeplay.device.cuda.patch import Patcher, build_patcher, own_nodes_of
from treeplay.device.cuda.verify import unfaithful_nodes
from treeplay.device.protocol import Replay, Work
from treeplay.errors import InternalError
from treeplay.relocate import Relocation, Row, relocate
from treeplay.torch_seam import allocator
from treeplay.values.launch import LaunchFacts
from treeplay.values.nodes import Allocation
from treeplay.values.spec import TensorSpec

_MOST_ROUNDS = 8  # each shows what cannot move; the last is made with a copy of everything
_BYTES_PER_NODE = 2048
_MOST_BYTES_KEPT = 16 << 20
_NEVER_SETTLED = "captures went on showing other inputs and outputs that cannot move"


@dataclass(slots=True)
class CaptureFindings:
    """What captures have shown: inputs that need a `buffer` and outputs that need a captured copy, each with the reason."""

    buffered: dict[int, str] = field(default_factory=dict)
    cloned: dict[int, str] = field(default_factory=dict)
    table: Relocation | None = None
    why_fixed: str | None = None  # why nothing at all can move
    unfaithful: dict[int, str] = field(default_factory=dict)  # nodes that cannot be set, each with what went wrong

    def copy_everything(self, inputs: Iterable[int], outputs: Iterable[int]) -> None:
        """Move none of these: for a program of which each capture shows something new that cannot move."""
        self.buffered = dict.fromkeys(inputs, _NEVER_SETTLED) | self.buffered
        self.cloned = dict.fromkeys(outputs, _NEVER_SETTLED) | self.cloned


@dataclass(eq=False)
class CapturedGraph:
    """A graph, the function that launches it, and what both keep alive. Its owner calls `free`."""

    work: Work
    made: Attempt
    lane: Lane
    found: CaptureFindings
    buffers: dict[int, torch.Tensor]
    rows: dict[int, Row]
    patcher: Patcher | None
    addresses: list[int]
    launch: Callable[..., Sequence[Any]]  # boxed, if the work says how
    exec_bytes: int
    seconds: dict[str, float]
    copied_bytes_per_call: int = 0
    moves: int = 0
    is_held: bool = True
    _launches_seen: int = 0
    _trials: int = 0

    @property
    def launches(self) -> int:
        """Launches since this was last set to 0."""
        return launches_of(self.launch) - self._launches_seen

    @launches.setter
    def launches(self, count: int) -> None:
        self._launches_seen = launches_of(self.launch) - count

    def replay(self, tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        """Launch it with tensors, boxed or not."""
        boxing = self.work.boxing
        return self.launch(tensors, numbers) if boxing is None else boxing.as_replay(self.launch)(tensors, numbers)

    def count_anew(self) -> None:
        """What was launched so far was to try it."""
        self._trials = launches_of(self.launch)

    @property
    def blocks(self) -> tuple[Allocation, ...]:
        """The scratch memory that it uses while it runs."""
        captured = self.made.captured
        return (captured.blocks or ()) if captured is not None else ()

    @property
    def own_bytes(self) -> int:
        """What it holds besides: the instantiated graph, and buffers."""
        return self.exec_bytes + self.buffer_bytes

    @property
    def buffer_bytes(self) -> int:
        """Of the buffers, each of which a call fills."""
        return sum(TensorSpec.of(buffer).nbytes for buffer in self.buffers.values())

    def facts(self) -> LaunchFacts:
        """A snapshot of how it is launched."""
        captured, launches = self.made.captured, launches_of(self.launch) - self._trials
        return LaunchFacts(
            str(self.lane.device),
            "recorded",
            why=self.found.why_fixed,
            nodes=len(captured.nodes) if captured is not None else 0,
            scratch_bytes=union_bytes(self.blocks),
            exec_bytes=self.exec_bytes,
            copied_bytes_per_call=self.copied_bytes_per_call,
            launches=launches,
            copied_bytes=launches * self.copied_bytes_per_call,
            patched=self.moves,
            policy=self._policy(),
            seconds=dict(self.seconds),
        )

    def _policy(self) -> dict[str, str]:
        names = self.work.names
        policy = {}
        for at, name in enumerate(names):
            if at in self.buffers:
                policy[name] = f"copied: {self.found.buffered[at]}"
            elif at in self.rows:
                kind = "pinned" if at in self.work.state else "patched"
                policy[name] = f"{kind} ({len(self.rows[at].sites)} sites)"
            else:
                policy[name] = "pinned"
        return policy | {f"out[{at}]": f"copied: {why}" for at, why in self.found.cloned.items()}

    def move_state(self, tensors: list[torch.Tensor]) -> None:
        """State that seldom moves has moved: its new addresses go into the graph; `Unplaced` if they cannot."""
        now = {at: tensors[at].data_ptr() for at in self.work.state}
        moves = {at: address for at, address in now.items() if address != self.addresses[at]}
        if self.patcher is None or not all(at in self.rows and self.rows[at].accepts(moves[at]) for at in moves):
            raise Unplaced
        # Tensors of one storage are found by the first of them: the others must lie as far from it as they did.
        for at, row in self.rows.items():
            if row.leader is not None and now[at] - now[row.leader] != row.address - self.rows[row.leader].address:
                raise Unplaced
        for at in moves:
            self.addresses[at] = 0  # unknown, if the next line is broken off
        self.patcher.move_many((self.rows[at], address) for at, address in moves.items() if self.rows[at].sites)
        for at, address in moves.items():
            self.addresses[at] = address
        self.moves += len(moves)

    def free(self) -> None:
        """Give graph and memory back; the next launch finds that it has to be captured again.

        What is still running with the buffers keeps them until it is done.
        """
        with self.lane.lock:
            if not self.is_held:
                return
            self.is_held = False
            disable(self.launch)
            for buffer in self.buffers.values():
                self.lane.keep_for_last_replay(buffer)
            if self.work.vector is not None:
                self.lane.keep_for_last_replay(self.work.vector.tensor)
            self.buffers = {}
            self.made.drop()


def capture_work(
    work: Work, tensors: Sequence[torch.Tensor], lane: Lane, plain: Replay, not_launched: NotLaunched
) -> CapturedGraph:
    """Capture the body of `work` over `tensors`; executes nothing. Raises `CaptureFailed`, or what the body raises.

    `plain` runs the work as it is; it is called where a tensor lies so that the graph cannot read it. `not_launched` is
    called where a launch raised before the graph was launched.
    """
    seconds: dict[str, float] = {}
    found = CaptureFindings()
    buffers: dict[int, torch.Tensor] = {}
    for number in range(_MOST_ROUNDS):
        buffers = {at: buffers.get(at, _buffer(tensors[at])) for at in found.buffered}
        made = _capture_and_prove(work, tensors, lane, found, buffers, seconds)
        _ask_nodes(made, found)
        if not _learned(work, found):
            break
        if number == _MOST_ROUNDS - 2:
            arguments = set(movable_of(work, tensors, found.buffered) or ()) - work.state
            found.copy_everything(arguments, range(len(made.outputs)))
        made.drop()
    else:
        raise InternalError("captures went on showing other things that cannot move")
    try:
        return _instantiated(work, tensors, lane, found, buffers, made, Otherwise(plain, not_launched), seconds)
    except BaseException:
        made.drop()
        raise


def _capture_and_prove(
    work: Work,
    tensors: Sequence[torch.Tensor],
    lane: Lane,
    found: CaptureFindings,
    buffers: dict[int, torch.Tensor],
    seconds: dict[str, float],
) -> Attempt:
    """The capture to be replayed, after two more with every movable tensor elsewhere; notes the table in `found`."""
    own = [work.vector.tensor] if work.vector is not None else []
    movable = movable_of(work, tensors, buffers)
    given = [buffers.get(at, tensor) for at, tensor in enumerate(tensors)]
    for at in lodgers(tensors, movable or ()):
        if at not in work.state:
            (given[at],) = make_decoys([tensors[at]], seed=0)
    before = time.perf_counter()
    shapes: Shapes = {}
    made = attempt(work, [*given, *own], lane, cloned=found.cloned, movable=movable, shapes=shapes)
    seconds["capture"] = time.perf_counter() - before
    if movable is None:
        found.why_fixed = "the driver's library is not found, so addresses cannot be changed"
        return made
    captures = [made.captured]
    held_before = torch.cuda.memory_reserved(lane.device)
    try:
        for seed in (1, 2):
            decoys = make_decoys([given[at] for at in movable], seed=seed)
            elsewhere = list(given)
            for at, decoy in zip(movable, decoys, strict=True):
                elsewhere[at] = decoy
            other = attempt(
                work, [*elsewhere, *own], lane, cloned=found.cloned, movable=movable, shapes=shapes, is_apart=True
            )
            captures.append(other.captured)
            other.drop()
        ranges = device_ranges()
        found.table = relocate([one for one in captures if one is not None], ranges=ranges)
    except BaseException:
        made.drop()
        raise
    lane.kept_bytes += max(0, torch.cuda.memory_reserved(lane.device) - held_before)
    if lane.kept_bytes > _MOST_BYTES_KEPT:
        torch.cuda.empty_cache()  # what proofs have used is of no use to anybody else
        lane.kept_bytes = 0
    seconds["proof"] = time.perf_counter() - before - seconds["capture"]
    return made


def movable_of(work: Work, tensors: Sequence[torch.Tensor], buffers: Collection[int]) -> list[int] | None:
    """The inputs whose address may go into the graph; None where graphs cannot be read."""
    if not is_available():
        return None
    return [at for at, tensor in enumerate(tensors) if at not in buffers and at not in work.fixed and tensor.numel()]


def lodgers(tensors: Sequence[torch.Tensor], among: Collection[int]) -> list[int]:
    """The tensors that share their storage with another one. Arguments that do may lie apart, or differently, next time."""
    users = Counter(tensor.untyped_storage()._cdata for tensor in tensors)
    return [at for at in among if users[tensors[at].untyped_storage()._cdata] > 1]


def _ask_nodes(made: Attempt, found: CaptureFindings) -> None:
    """What lies in nodes that do not take their parameters back as they are cannot move."""
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


def _instantiated(
    work: Work,
    tensors: Sequence[torch.Tensor],
    lane: Lane,
    found: CaptureFindings,
    buffers: dict[int, torch.Tensor],
    made: Attempt,
    otherwise: Otherwise,
    seconds: dict[str, float],
) -> CapturedGraph:
    before = time.perf_counter()
    free_before = torch.cuda.mem_get_info(lane.device)[0]
    made.graph.instantiate()
    taken = free_before - torch.cuda.mem_get_info(lane.device)[0]
    # The driver takes memory in large pieces, so most graphs seem to take none: then what they take on average counts.
    nodes = len(made.captured.nodes) if made.captured is not None else 0
    exec_bytes = max(taken, nodes * _BYTES_PER_NODE)
    patcher = None
    rows: dict[int, Row] = {}
    out_rows: dict[int, Row] = {}
    if found.table is not None:
        patcher = build_patcher(made.graph.raw_cuda_graph(), made.graph.raw_cuda_graph_exec(), found.table)
        rows = {row.index: row for row in found.table.tensors if row.is_patchable}
        out_rows = {row.index: row for row in found.table.outputs if row.is_patchable}
    seconds["instantiate"] = time.perf_counter() - before
    addresses = [tensor.data_ptr() for tensor in tensors]
    captured = CapturedGraph(
        work, made, lane, found, buffers, rows, patcher, addresses, otherwise.plain, exec_bytes, seconds
    )
    parts = _parts(captured, tensors, out_rows, otherwise)
    captured.copied_bytes_per_call = _copied_bytes(parts, found)
    captured.launch = load_source(emit_launch(parts, work.name))
    made.outputs.clear()  # what a result moves away from is nobody's; the others are held by the launch function
    seconds["emit"] = time.perf_counter() - before - seconds["instantiate"]
    lane.hold(captured)
    return captured


def _parts(
    captured: CapturedGraph, tensors: Sequence[torch.Tensor], out_rows: dict[int, Row], otherwise: Otherwise
) -> LaunchParts:
    work, rows, patcher = captured.work, captured.rows, captured.patcher
    steady = tuple(at for at, tensor in enumerate(tensors) if at in work.state and tensor.numel())

    def mover(row: Row) -> Move:
        if patcher is None:
            raise InternalError("nothing can be moved without a patcher")
        return patcher.mover(row)

    def result(at: int, output: torch.Tensor) -> LaunchOutput:
        row, spec = out_rows.get(at), TensorSpec.of(output)
        if row is not None:
            # Most gradients are never moved: writing their movers would take longer than the captures.
            move = lazily(lambda: mover(row)) if at in work.slots else mover(row)
            return LaunchOutput(spec, row.address, move, leaf=work.slots.get(at))
        return LaunchOutput(spec, 0, None, output if output.numel() else None)

    return LaunchParts(
        lane=captured.lane,
        replay=allocator.replay_of(captured.made.graph),
        otherwise=otherwise,
        vector=work.vector,
        steady=steady,
        addresses=captured.addresses,
        moved=weakly(captured.move_state),
        patched=tuple(
            Patched(at, row.address, mover(row), row.alignment, row.residue, at in work.mutated)
            for at, row in rows.items()
            if at not in work.state and row.sites
        ),
        copied=tuple(Copied(at, buffer, at in work.mutated) for at, buffer in captured.buffers.items()),
        results=tuple(result(at, output) for at, output in enumerate(captured.made.outputs)),
        align=aligned,
        boxing=work.boxing,
    )


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


def _buffer(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def aligned(tensor: torch.Tensor, residue: int, modulus: int) -> torch.Tensor:
    """A copy of `tensor` at an address that leaves `residue` when divided by `modulus`."""
    spec = TensorSpec.of(tensor)
    room = torch.empty(spec.nbytes + modulus + tensor.element_size(), dtype=torch.uint8, device=tensor.device)
    shift = (residue - room.data_ptr()) % modulus
    copy = room[shift : shift + spec.nbytes].view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    return copy.copy_(tensor)
