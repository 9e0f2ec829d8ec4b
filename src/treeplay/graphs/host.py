"""An explicit recording on the CPU: the host's recorder around a block, and its tape to replay."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from treeplay.device.host.dot import dot_of
from treeplay.device.host.recorder import Recorder
from treeplay.device.host.tape import HostTape
from treeplay.device.turns import turns
from treeplay.errors import UsageError
from treeplay.graphs.device import CaptureHoldings, Wish, most_frequent, refuse_stream
from treeplay.graphs.inputs import Inputs
from treeplay.graphs.pools import host_pools, new_pool
from treeplay.observe.once import warn_here
from treeplay.sandbox.teardown import Teardown
from treeplay.torch_seam.allocator import Pool
from treeplay.torch_seam.tensors import storage_of


class HostRecording:
    """`DeviceRecording` on the CPU."""

    def __init__(self, generators: Sequence[torch.Generator], inputs: Inputs | None) -> None:
        self.device = torch.device("cpu")
        self._generators = generators
        self._inputs = inputs
        self._recorder: Recorder | None = None
        self._tape = HostTape()
        self._pool: Pool | None = None

    @contextmanager
    def capturing(self, wish: Wish) -> Iterator[None]:
        """Record a block."""
        if wish.collect_garbage:
            gc.collect()
        self.begin(wish)
        try:
            yield
        except BaseException as error:
            self._abandon(error)
            raise
        self.end()

    def begin(self, wish: Wish) -> None:
        """Begin to record what this thread does."""
        refuse_stream(wish.stream)
        turns.take()
        try:
            self._recorder = Recorder(self._generators, self._note if self._inputs is not None else None)
            self._recorder.begin()
            self._pool = wish.pool or new_pool()
        except BaseException:
            self._recorder = None
            turns.give_back()
            raise

    def end(self) -> None:
        """End the recording."""
        if self._recorder is None:
            return
        # First: elsewhere than where it began, the recording is not ended and goes on.
        self._recorder.check_ends_here()
        recorder, self._recorder = self._recorder, None
        first = None
        try:
            self._tape = recorder.end()
        except BaseException as error:
            first = recorder.abandon(error)
        _giving_the_turn_back().finish(first)
        if self._pool is not None:
            host_pools.claim(self._pool, self._tape)
        if not self._tape.operations:
            warn_here("the recording is empty: nothing of what ran between begin and end works on CPU tensors")

    def abandon(self) -> None:
        """End it and keep nothing."""
        first = self._abandon(None)
        if first is not None:
            raise first

    def _abandon(self, first: BaseException | None) -> BaseException | None:
        recorder, self._recorder = self._recorder, None
        return _giving_the_turn_back().run(recorder.abandon(first)) if recorder is not None else first

    def instantiate(self) -> None:
        """Nothing: a tape is ready as it is."""

    def replay(self) -> None:
        """Run the tape."""
        self._tape.replay()

    def pool(self) -> Pool:
        """The token of its pool."""
        if self._pool is None:
            raise UsageError("there is no pool before a capture")
        return self._pool

    def dump(self, path: str) -> None:
        """Write one node per operator, with an edge for each dependence through memory."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(dot_of(self._tape.operations))

    def raw(self) -> None:
        """torch has no recordings on the CPU."""

    def held(self) -> CaptureHoldings:
        """Operators by name, and what their results take."""
        names = [operation.name for operation in self._tape.operations]
        return CaptureHoldings(most_frequent(names), host_pools.size_bytes(self.pool()), 0)

    def reset(self) -> None:
        """Drop the tape; tensors that somebody holds keep their memory."""
        self._tape, self._pool = HostTape(), None

    def _note(self, tensor: torch.Tensor) -> None:
        tape, storage = self._recorder.tape if self._recorder else self._tape, storage_of(tensor)
        if self._inputs is not None:
            self._inputs.note(tensor, lambda: tape.is_held_elsewhere(storage))


def _giving_the_turn_back() -> Teardown:
    steps = Teardown()
    steps.add("giving the turn to record back", turns.give_back)
    return steps
