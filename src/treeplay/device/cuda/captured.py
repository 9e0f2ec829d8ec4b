"""A captured graph: the function that launches it, what both keep alive, and how state that has moved gets into it.

`capture_work` makes one. Its owner calls `free`; what is still running then keeps its memory until it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.device.cuda.capturing.attempt import Attempt
from treeplay.device.cuda.capturing.rounds import CaptureFindings
from treeplay.device.cuda.lane import Lane, Unplaced, union_bytes
from treeplay.device.cuda.launching.launch import disable, forget_results, launches_of
from treeplay.device.cuda.nodes.patch import Patcher
from treeplay.device.protocol import Work
from treeplay.device.use import Use
from treeplay.relocate import Row
from treeplay.values.launch import LaunchFacts
from treeplay.values.nodes import Allocation
from treeplay.values.spec import TensorSpec

BYTES_PER_NODE = 2048
"""What the driver keeps for a node of an instantiated graph, on average."""


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
    use: Use = field(default_factory=Use)
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
        """What was launched so far were trials, which no facts count."""
        self._trials = launches_of(self.launch)

    @property
    def blocks(self) -> tuple[Allocation, ...]:
        """The scratch memory that it uses while it runs, where that lies in the shared pool."""
        captured = self.made.captured if self.made.space is None else None
        return (captured.blocks or ()) if captured is not None else ()

    @property
    def scratch_bytes(self) -> int:
        """The scratch memory behind it, which it shares."""
        return self.made.space.scratch_bytes if self.made.space is not None else union_bytes(self.blocks)

    @property
    def own_bytes(self) -> int:
        """What it holds besides: the instantiated graph, and buffers."""
        return self.exec_bytes + self.buffer_bytes

    @property
    def usual_bytes(self) -> int:
        """The same by the driver's average for a node: it takes memory in large pieces, so most graphs seem to take none."""
        nodes = len(self.made.captured.nodes) if self.made.captured is not None else 0
        return self.buffer_bytes + (nodes * BYTES_PER_NODE or self.exec_bytes)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffers that calls fill."""
        return sum(TensorSpec.of(buffer).nbytes for buffer in self.buffers.values())

    def facts(self) -> LaunchFacts:
        """A snapshot of how it is launched."""
        captured, launches = self.made.captured, launches_of(self.launch) - self._trials
        return LaunchFacts(
            str(self.lane.device),
            "recorded",
            why=self.found.why_fixed,
            nodes=len(captured.nodes) if captured is not None else 0,
            scratch_bytes=self.scratch_bytes,
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

    def forget_results(self) -> None:
        """Let go of the results that the next launch would write again."""
        with self.lane.lock:
            forget_results(self.launch)

    def free(self) -> None:
        """Give graph and memory back; the next launch finds that it has to be captured again.

        What is still running with the buffers keeps them until it is done.
        """
        with self.lane.lock:
            if not self.is_held:
                return
            self.is_held = False
            # First, so that nobody launches a graph that is going; whoever waits for the lock finds it disabled.
            disable(self.launch)
            for buffer in self.buffers.values():
                self.lane.keep_for_last_replay(buffer)
            if self.work.vector is not None:
                self.lane.keep_for_last_replay(self.work.vector.tensor)
            self.buffers = {}
            self.made.drop()
