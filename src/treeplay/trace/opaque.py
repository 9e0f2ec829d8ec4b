"""Opaque programs: recorded as they are, without a trace (`lower="capture"`).

Custom kernels, Triton kernels, extensions without rules for running without data, models already under `torch.compile`:
their Python runs inside a device's recording, and what it launches is the recording. The device drives three phases:

    out, log = plain_run(program, call)       call 1: eager and unobserved, so that compiled code meets no mode
    prepared = prepare(program, call)         a later call: survey; raises `Refusal`; runs nothing
    outputs  = prepared.run(tensors)          inside the recording; first with `prepared.tensors` themselves,
    outputs' = prepared.run(moved)            then, for a second and a third capture, with others at `prepared.movable`
    signature, kept = prepared.signature(unused)     as a trace would give it; `kept` are the inputs that are left

`prepared.tensors` are today's inputs: the arguments first, then every tensor of state that the survey reached, in the
order of `prepared.inputs`. `run` takes as many tensors in that order and calls the program with them in the arguments'
places; it returns the recorded outputs (`Fresh(i)` is the i-th), the same number, in the same order, on each run, each a
tensor with the whole of its storage. After every run, also one that raised, Python state, gradients and host generators are
as before, so the program can be run again. `run` raises `Refusal` where the program changes Python values on each call. It
sets grad mode and autocast to what they were when it was prepared, whatever they are around it.

`prepared.movable` (after the first run) are positions of inputs that another tensor of the same spec may stand in for:
arguments that share no memory with anything, gradients, and other slots that the program rebinds. All others are pinned:
the program reads them where they lie, so a device gives no others in their places while it captures, and a call that finds
one elsewhere than it was captured is a miss: the program is recorded anew. An input that turns out to be used by nothing (no
site in the captured nodes) may be named in `unused`: it is left out.

A device that captures later than the signature is needed runs once in a capture that it throws away, asks for the signature,
and records `prepared.run` whenever it likes, over the inputs that are left, the arguments and state of that day.

`prepared.plain(tensors)` is a call that is not recorded: the program runs with its effects on tensors, and gives the outputs.

Every input counts as written (`is_mutated`), plain values and hyper-parameters are watched, and random numbers are the
device's affair. `prepared.counted` (after the first run) are the inputs that autograd was told of as written. Outputs that
do not lie in the recording's pool are hidden state: a device copies or refuses them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from treeplay.errors import InternalError, RanOtherwise, Refusal
from treeplay.guards.reads import Reads
from treeplay.sandbox.collection import no_collection
from treeplay.torch_seam.autograd import version_of
from treeplay.trace.apart import may_have_drawn, told_apart
from treeplay.trace.call import Call, call_of, home_of
from treeplay.trace.found import Survey
from treeplay.trace.given import over
from treeplay.trace.host_tensors import HostState
from treeplay.trace.log import LoggedCall
from treeplay.trace.opaque_signature import Arguments, opaque_signature, renumbered
from treeplay.trace.randomness import SETS
from treeplay.trace.recordable import survey_to_record
from treeplay.trace.returned import Returned, is_plain
from treeplay.trace.shown import RunFacts, key_of
from treeplay.trace.slots import find_writes
from treeplay.trace.snapshot import Snapshot
from treeplay.trace.surroundings import Surroundings
from treeplay.trace.turn import turn
from treeplay.values.kinds import is_leaf
from treeplay.values.output import inputs_used
from treeplay.values.overlap import overlapping
from treeplay.values.place import How, Place
from treeplay.values.refusal import Reason
from treeplay.values.signature import Argument, Input, Signature, State, parts_of
from treeplay.values.spec import TensorSpec
from treeplay.values.structure import paths

_SAME_AGAIN = "make it do the same on each call, or keep it eager"


def plain_run(program: Callable[..., Any], call: Call) -> tuple[Any, list[LoggedCall]]:
    """Run `program` eagerly, in nobody's sight: its result, and an empty log."""
    return program(*call.args, **call.kwargs), []


def prepare(program: Callable[..., Any], call: Call) -> Prepared:
    """Find out what `program` depends on; raises `Refusal` where that cannot be followed. Runs nothing."""
    found = survey_to_record(program, call)
    tensors = _reached(call, found)
    device = _device(program, tensors)
    watched = [tensor for tensor in tensors if tensor.device != device or not is_plain(tensor)]
    for tensor in watched:
        if found.tensor_at(tensor)[0].how is How.ARGUMENT:
            raise Refusal(_of_another_kind(program, tensor, device))
    used = [tensor for tensor in tensors if tensor.device == device and is_plain(tensor)]
    return Prepared(program, call, found, used, HostState(watched, device, found.generators.values()))


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


def _reached(call: Call, found: Survey) -> list[torch.Tensor]:
    """Every tensor that has a place, each once, the arguments first."""
    tensors = [*call.tensors, *(item for item in found.kept if isinstance(item, torch.Tensor))]
    tensors += [tensor.grad for tensor in tensors if is_leaf(tensor) and tensor.grad is not None]
    return [tensor for tensor in {id(item): item for item in tensors}.values() if found.tensor_at(tensor)]


def _device(program: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> torch.device:
    found = list(dict.fromkeys(tensor.device for tensor in tensors if tensor.device.type != "cpu"))
    if len(found) <= 1:
        return found[0] if found else torch.device("cpu")
    raise Refusal.of(
        "device",
        f"the program reaches tensors on {found[0]} and on {found[1]}, and a recording belongs to one device",
        "jit the parts apart",
        home_of(program),
    )


def _of_another_kind(program: Callable[..., Any], tensor: torch.Tensor, device: torch.device) -> Reason:
    if tensor.device != device:
        why, advice = f"a tensor on {tensor.device} is given to a program on {device}", "move it there before the call"
    else:
        why = f"a {type(tensor).__name__} of layout {tensor.layout} is not a plain strided tensor"
        advice = "convert it outside of the program"
    return Reason(op="argument", why=why, advice=advice, where=home_of(program))


def _input(tensor: torch.Tensor, names: list[str], found: Survey) -> Input:
    first, *others = found.tensor_at(tensor)
    spec = TensorSpec.of(tensor)
    if first.how is How.ARGUMENT:
        return Input(names[first.key], Argument(first.key, tuple(others)), spec, is_mutated=True)
    return Input(str(first), State(first, tuple(others)), spec, is_mutated=True)


class Prepared:
    """An opaque program and the state it was found with, on the way to a recording; holds a call's tensors until then."""

    def __init__(
        self, program: Callable[..., Any], call: Call, found: Survey, tensors: list[torch.Tensor], host: HostState
    ) -> None:
        names = paths(call.structure)
        self.inputs = tuple(_input(tensor, names, found) for tensor in tensors)
        self.tensors = tensors
        self.movable: tuple[int, ...] = ()
        self.counted: tuple[int, ...] = ()
        self._program = program
        self._call = Arguments(call)
        self._found = found
        self._host = host
        self._around = Surroundings.now()
        self._shown: RunFacts | None = None
        self._reads: Reads | None = None  # of the first run beside which there were other threads

    @property
    def device(self) -> torch.device:
        """Where the program computes."""
        return self._host.device

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """The generators of the program's own, besides torch's default ones."""
        return tuple(self._found.generators.values())

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the program for a recording, over `tensors`; gives the outputs, and leaves Python as it was."""
        with (
            no_collection(),
            _fused_may_be_captured(self._found.optimizers, self.device),
            self._around.set(),
            self._host.apart(self._refuse, lambda: may_have_drawn(self._reads)),
            self._in_place(tensors),
        ):
            args, kwargs = self._arguments_over(tensors)
            snapshot = Snapshot(over(self._found, args, kwargs), tensors)
            versions = [version_of(tensor) for tensor in tensors]
            try:
                call = call_of(args, kwargs)
                on_a_gpu = self.device.type == "cuda"  # where seeding leaves no mark during a capture
                with told_apart(
                    self._program, call, snapshot, self._reads, alone=turn, is_noted=on_a_gpu
                ) as self._reads:
                    result = self._program(*args, **kwargs)
                self._check_seeds()
                outputs, shown = self._look(result, snapshot, tensors)
                counted = tuple(at for at, tensor in enumerate(tensors) if version_of(tensor) != versions[at])
            finally:
                snapshot.restore()
                snapshot.whose = None  # which refers to what the run came across
        if self._shown is None:
            self._shown, self.counted = shown, counted
            self.movable = tuple(self._find_movable(shown, tensors))
        self._check_like(shown)
        return outputs

    def plain(self, tensors: Sequence[torch.Tensor], numbers: Sequence[float] = ()) -> list[torch.Tensor]:
        """Run the program for its effects on today's tensors; gives the outputs, and leaves Python as it was.

        A run that does something else than the first one has had its effects all the same, those on Python included: it
        raises `RanOtherwise`, with its result.
        """
        with self._around.set():
            args, kwargs = self._arguments_over(tensors)
            snapshot = Snapshot(over(self._found, args, kwargs), tensors)
            call, known = call_of(args, kwargs), self._reads
            with told_apart(self._program, call, snapshot, known) if known is not None else contextlib.nullcontext():
                result = self._program(*args, **kwargs)
            try:
                outputs, shown = self._look(result, snapshot, tensors)
                self._check_like(shown)
            except Refusal as refusal:
                raise RanOtherwise(refusal.reason, result) from refusal
            snapshot.restore(versions=False)
        return outputs

    def signature(self, unused: Sequence[int] = ()) -> tuple[Signature, tuple[int, ...]]:
        """What a call does around the recording, and which inputs it gives to it. From now on `run` takes only these."""
        if self._shown is None:
            raise self._refuse("program", "was not run", "report this: it is a fault of treeplay's")
        kept = self._kept(set(unused), self._shown)
        shown = self._shown
        self._shown = RunFacts(
            shown.results, renumbered(shown.refs, kept), renumbered(shown.writes, kept), shown.outputs
        )
        is_step = self._is_step(shown)
        self.inputs = tuple(self.inputs[at] for at in kept)
        self.movable, self.counted = (
            tuple(kept.index(at) for at in among if at in kept) for among in (self.movable, self.counted)
        )
        signature = opaque_signature(self._found, self.inputs, self._call, self._shown, self._host, is_step=is_step)
        self._forget()
        return signature, kept

    # --- one run --------------------------------------------------------------------------------------------

    def _arguments_over(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, Any]:
        given = {
            item.source.index: tensor
            for item, tensor in zip(self.inputs, tensors, strict=True)
            if isinstance(item.source, Argument)
        }
        return self._call.over(given)

    @contextlib.contextmanager
    def _in_place(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Tensors of state are in their places for a block, where others are outside of it."""
        outside: list[tuple[int, Place, Any]] = []
        try:
            for at, (item, tensor) in enumerate(zip(self.inputs, tensors, strict=True)):
                if isinstance(item.source, State) and (now := item.source.place.read_or(None)) is not tensor:
                    if at not in self.movable:
                        raise InternalError(f"{item.name} is read where it lies, and another tensor was given for it")
                    outside.append((at, item.source.place, now))
                    item.source.place.write(tensor)
            yield
        finally:
            for at, place, tensor in outside:
                if place.read_or(None) is tensors[at]:  # or another thread has put something else there
                    place.write(tensor)

    def _look(
        self, result: Any, snapshot: Snapshot, tensors: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], RunFacts]:
        """What a run returned and left behind."""
        self._check_global_state(snapshot)
        returned = Returned(snapshot.found, self._refuse, tensors)
        # Results first: a tensor that is returned and stored is one output.
        structure, refs = returned.of_call(result, snapshot.stored())
        writes = find_writes(snapshot, returned, [])
        return returned.outputs, RunFacts(structure, refs, writes, tuple(map(TensorSpec.of, returned.outputs)))

    def _check_seeds(self) -> None:
        used = SETS.intersection(self._reads.methods) if self._reads is not None else ()
        if used:
            raise self._refuse(
                min(used),
                "the program sets where a random generator stands; a recording would draw on from where the last call left it",
                "seed outside of the program",
            )

    def _check_global_state(self, snapshot: Snapshot) -> None:
        source = snapshot.random_source_used()
        if source is not None:
            raise self._refuse(
                source,
                "the program draws from this generator in Python, so a recording would freeze what it drew",
                "draw with torch operators inside the program, or draw outside and pass a tensor",
            )
        for mode, is_changed in (
            ("grad mode", snapshot.grad_mode_changed()),
            ("autocast", snapshot.autocast_changed()),
        ):
            if is_changed:
                raise self._refuse(mode, f"the program leaves {mode} changed", "change it with a context")

    def _check_like(self, shown: RunFacts) -> None:
        if self._shown is None or not self._shown.is_like(shown):
            raise self._refuse("program", "does not do the same on each run", _SAME_AGAIN)

    # --- what the first run tells ---------------------------------------------------------------------------

    def _is_step(self, shown: RunFacts) -> bool:
        """Whether the program calls backward itself, as far as gradients show it."""
        sources = [self.inputs[at].source for at in self.counted]
        places = [write.place for write in shown.writes]
        places += [source.place for source in sources if isinstance(source, State)]
        return any(place.how is How.GRAD for place in places)

    def _find_movable(self, shown: RunFacts, tensors: Sequence[torch.Tensor]) -> Iterator[int]:
        rebound = {key_of(write.place) for write in shown.writes}
        shared = {at for pair in overlapping(tensors, range(len(tensors))) for at in pair}
        for at, (item, tensor) in enumerate(zip(self.inputs, tensors, strict=True)):
            source = item.source
            is_slot = isinstance(source, State) and (source.place.how is How.GRAD or key_of(source.place) in rebound)
            is_alone = at not in shared and not getattr(source, "also", ()) and not tensor.requires_grad
            if is_alone and (is_slot or isinstance(source, Argument)):
                yield at

    def _kept(self, unused: set[int], shown: RunFacts) -> tuple[int, ...]:
        """All inputs but those that nothing needs: gradients in a program that has none, and what the device says."""
        refs = [*shown.refs, *(write.value for write in shown.writes)]
        needed = set(inputs_used(part for ref in refs for part in parts_of(ref)))
        is_step = self._is_step(shown)
        kept = []
        for at, item in enumerate(self.inputs):
            is_grad = isinstance(item.source, State) and item.source.place.how is How.GRAD
            is_free = (at in unused and not item.spec.requires_grad) or (is_grad and not is_step)
            if at in needed or isinstance(item.source, Argument) or not is_free:
                kept.append(at)
        return tuple(kept)

    def _forget(self) -> None:
        """Drop the call's tensors: afterwards only the recording holds memory."""
        self.tensors = []
        self._found.kept[:] = [item for item in self._found.kept if not isinstance(item, torch.Tensor)]
        self._found.tensors.clear()
        if self._reads is not None:
            self._reads.forget(but=self._found.kept)
        self._found = over(self._found, (), {})

    def _refuse(self, op: str, why: str, advice: str) -> Refusal:
        return Refusal.of(op, why, advice, home_of(self._program))
