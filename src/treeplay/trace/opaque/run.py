"""One run of an opaque program: over tensors that stand in for the call's, after which Python is as it was before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from treeplay.errors import InternalError, RanOtherwise, Refusal
from treeplay.guards.reads.reads import Reads
from treeplay.sandbox.collection import no_collection
from treeplay.torch_seam.autograd import version_of
from treeplay.trace.call import Call, call_of, home_of
from treeplay.trace.opaque.host_tensors import HostState
from treeplay.trace.opaque.signature import Arguments
from treeplay.trace.restore.apart import may_have_drawn, told_apart
from treeplay.trace.restore.left_behind import check_global_state
from treeplay.trace.restore.randomness import SETS
from treeplay.trace.restore.snapshot import Snapshot
from treeplay.trace.restore.surroundings import Surroundings
from treeplay.trace.shown import RunFacts
from treeplay.trace.signature.returned import Returned
from treeplay.trace.signature.slots import find_writes
from treeplay.trace.survey.found import Survey
from treeplay.trace.survey.given import over
from treeplay.trace.turn import turn
from treeplay.values.location import Location
from treeplay.values.place import Place
from treeplay.values.signature import Argument, Input, State
from treeplay.values.spec import TensorSpec
from treeplay.values.structure import Leaf

TensorSequence = Sequence[torch.Tensor]


class OpaqueRuns:
    """Runs a program in grad mode and autocast as they were when it was prepared, whatever they are around it."""

    def __init__(self, program: Callable[..., Any], call: Call, found: Survey, host: HostState) -> None:
        self.found = found
        self.host = host
        self.arguments = Arguments(call, found, home_of(program))
        self._program = program
        self._around = Surroundings.now()
        self._reads: Reads | None = None  # of the first run beside which there were other threads

    def recorded(
        self, inputs: Sequence[Input], tensors: TensorSequence, movable: Collection[int]
    ) -> tuple[list[torch.Tensor], RunFacts, tuple[int, ...]]:
        """Run in a recording, with tensors of state in their places: the outputs, what the run showed, and which tensors
        autograd was told of as written. Also after a run that raised, Python is as it was."""
        with (
            no_collection(),
            # Before the snapshot: this flag is no change of the program's.
            _fused_may_be_captured(self.found.optimizers, self.host.device),
            self._around.set(),
            self.host.apart(self.refuse, lambda: may_have_drawn(self._reads)),
            _in_place(inputs, tensors, movable),
        ):
            args, kwargs = self._arguments_over(inputs, tensors)
            snapshot = Snapshot(over(self.found, args, kwargs, self.arguments.structure), tensors)
            versions = [version_of(tensor) for tensor in tensors]
            try:
                call = call_of(args, kwargs, self.arguments.opens)
                on_a_gpu = self.host.device.type == "cuda"  # where seeding leaves no mark during a capture
                with told_apart(
                    self._program, call, snapshot, self._reads, alone=turn, is_noted=on_a_gpu
                ) as self._reads:
                    result = self._program(*args, **kwargs)
                self._check_seeds()
                outputs, shown = self._look(result, snapshot, tensors)
                # Before `restore`, which puts versions back.
                counted = tuple(at for at, tensor in enumerate(tensors) if version_of(tensor) != versions[at])
            finally:
                snapshot.restore()
                snapshot.whose = None  # which refers to what the run came across
        return outputs, shown, counted

    def plain(self, inputs: Sequence[Input], tensors: TensorSequence, expected: RunFacts) -> list[torch.Tensor]:
        """Run for the effects on today's tensors: the outputs.

        A run that shows something else has had its effects all the same, those on Python included: it raises `RanOtherwise`,
        with its result.
        """
        with self._around.set():
            args, kwargs = self._arguments_over(inputs, tensors)
            snapshot = Snapshot(over(self.found, args, kwargs, self.arguments.structure), tensors)
            call, known = call_of(args, kwargs, self.arguments.opens), self._reads
            with told_apart(self._program, call, snapshot, known) if known is not None else contextlib.nullcontext():
                result = self._program(*args, **kwargs)
            try:
                outputs, shown = self._look(result, snapshot, tensors)
                self.check_like(shown, expected)
            except Refusal as refusal:
                raise RanOtherwise(refusal.reason, result) from refusal
            snapshot.restore(versions=False)  # tensors were written in earnest
        return outputs

    def check_like(self, shown: RunFacts, expected: RunFacts) -> None:
        """Raise `Refusal` if a run showed something else than is expected of it."""
        if not shown.is_like(expected):
            advice = "make it do the same on each call, or keep it eager"
            raise self.refuse("program", "does not do the same on each run", advice)

    def forget(self) -> None:
        """Drop the call's tensors: afterwards only the recording holds memory."""
        self.found.kept[:] = [item for item in self.found.kept if not isinstance(item, torch.Tensor)]
        self.found.tensors.clear()
        if self._reads is not None:
            self._reads.forget(but=self.found.kept)
        self.found = over(self.found, (), {}, Leaf(0))

    def refuse(
        self, op: str, why: str, advice: str, where: Location | None = None, *, may_pass: bool = False
    ) -> Refusal:
        """A refusal that names the program, for good: another look would take several runs of it, whatever `may_pass`."""
        return Refusal.of(op, why, advice, where or home_of(self._program))

    def _arguments_over(self, inputs: Sequence[Input], tensors: TensorSequence) -> tuple[Any, Any]:
        given = {
            item.source.index: tensor
            for item, tensor in zip(inputs, tensors, strict=True)
            if isinstance(item.source, Argument)
        }
        return self.arguments.over(given)

    def _look(
        self, result: Any, snapshot: Snapshot, tensors: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], RunFacts]:
        """What a run returned and left behind."""
        check_global_state(snapshot, self.refuse)
        returned = Returned(snapshot.found, self.refuse, tensors)
        # Results first: a tensor that is returned and stored is one output.
        structure, refs = returned.of_call(result, snapshot.stored())
        writes = find_writes(snapshot, returned, [])
        return returned.outputs, RunFacts(structure, refs, writes, tuple(map(TensorSpec.of, returned.outputs)))

    def _check_seeds(self) -> None:
        used = SETS.intersection(self._reads.methods) if self._reads is not None else ()
        if used:
            raise self.refuse(
                min(used),
                "the program sets where a random generator stands; a recording would draw on from where the last call left it",
                "seed outside of the program",
            )


@contextlib.contextmanager
def _in_place(inputs: Sequence[Input], tensors: TensorSequence, movable: Collection[int]) -> Iterator[None]:
    """Tensors of state are in their places for a block, where others are outside of it."""
    outside: list[tuple[int, Place, Any]] = []
    try:
        for at, (item, tensor) in enumerate(zip(inputs, tensors, strict=True)):
            if not isinstance(item.source, State):
                continue
            place = item.source.place.anew()
            if (now := place.read_or(None)) is not tensor:
                if at not in movable:
                    raise InternalError(f"{item.name} is read where it lies, and another tensor was given for it")
                outside.append((at, place, now))
                place.write(tensor)
        yield
    finally:
        for at, place, tensor in outside:
            if place.read_or(None) is tensors[at]:  # or another thread has put something else there
                place.write(tensor)


@contextlib.contextmanager
def _fused_may_be_captured(optimizers: Sequence[torch.optim.Optimizer], device: torch.device) -> Iterator[None]:
    """Fused optimizers count their steps on the GPU anyway: for a block they have the flag that torch asks for in a capture."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups if device.type == "cuda"]
    groups = [group for group in groups if group.get("fused") and group.get("capturable") is False]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in groups:
            group["capturable"] = False
