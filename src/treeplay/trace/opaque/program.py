"""Opaque programs: recorded as they are, without a trace (`lower="capture"`).

Custom kernels, Triton kernels, extensions without rules for running without data, models already under `torch.compile`:
their Python runs inside a device's recording, and what it launches is the recording.

    plain_run(program, call)                  call 1: eager and unobserved, so that compiled code meets no mode
    prepare(program, call) ─▶ Prepared        a later call: surveyed; nothing has run
    prepared.rehearsed(...) ─▶ Rehearsed      run in a recording that is thrown away, over the call's own tensors
    rehearsed.program()    ─▶ OpaqueProgram   with a signature as a trace would give it; holds no tensor of the call

A program is recorded by `OpaqueProgram.run` in a device's recording, whenever the device likes: over the arguments and the
state of that day, and for a second and a third capture over others where they are `movable`. Each run gives the same number of
outputs, in the same order, each a tensor with the whole of its storage (`Fresh(i)` is the i-th), and leaves Python as it was.

Plain values and hyper-parameters are watched, and random numbers are the device's affair. Outputs that do not lie in the
recording's pool are hidden state: a device copies or refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.torch_seam.tensors import unusual
from treeplay.trace.call import Call, home_of
from treeplay.trace.log import LoggedCall
from treeplay.trace.opaque.host_tensors import HostState
from treeplay.trace.opaque.run import OpaqueRuns, TensorSequence
from treeplay.trace.opaque.signature import opaque_signature, renumbered
from treeplay.trace.raised import program_raised
from treeplay.trace.shown import RunFacts
from treeplay.trace.signature.make import name_and_source
from treeplay.trace.survey.found import Survey
from treeplay.trace.survey.recordable import survey_to_record
from treeplay.values.kinds import is_leaf
from treeplay.values.output import inputs_used
from treeplay.values.overlap import overlapping
from treeplay.values.place import How
from treeplay.values.refusal import Reason
from treeplay.values.signature import Argument, Built, Input, Signature, State, values_in
from treeplay.values.spec import TensorSpec
from treeplay.values.structure import paths

OpaqueBody = Callable[[TensorSequence], list[torch.Tensor]]


def plain_run(program: Callable[..., Any], call: Call) -> tuple[Any, list[LoggedCall]]:
    """Run `program` eagerly, in nobody's sight: its result, and an empty log."""
    return program(*call.args, **call.kwargs), []


def prepare(program: Callable[..., Any], call: Call) -> Prepared:
    """Find out what `program` depends on; raises `Refusal` where that cannot be followed. Runs nothing."""
    found = survey_to_record(program, call)
    tensors = _reached(call, found)
    device = _device(program, tensors)
    watched = [tensor for tensor in tensors if tensor.device != device or unusual(tensor) is not None]
    for tensor in watched:
        if found.tensor_at(tensor)[0].how is How.ARGUMENT:
            raise Refusal(_of_another_kind(program, tensor, device))
    used = [tensor for tensor in tensors if tensor.device == device and unusual(tensor) is None]
    names = paths(call.structure)
    runs = OpaqueRuns(program, call, found, HostState(watched, device, found.generators.values()))
    return Prepared(runs, tuple(_input(tensor, names, found) for tensor in used), tuple(used))


@dataclass(frozen=True, eq=False)
class Prepared:
    """A program, and today's inputs: the arguments first, then every tensor of state that the survey reached."""

    runs: OpaqueRuns
    inputs: tuple[Input, ...]
    tensors: tuple[torch.Tensor, ...]

    @property
    def device(self) -> torch.device:
        """Where the program computes."""
        return self.runs.host.device

    def rehearsed(self, record: Callable[[OpaqueBody, TensorSequence], object]) -> Rehearsed:
        """Run it in what `record` makes of a body and tensors. Raises `Refusal` where the program changes Python values."""
        seen: list[tuple[RunFacts, tuple[int, ...]]] = []

        def body(tensors: TensorSequence) -> list[torch.Tensor]:
            outputs, shown, counted = self.runs.recorded(self.inputs, tensors, ())
            seen.append((shown, counted))
            self.runs.check_like(shown, seen[0][0])
            return outputs

        record(body, self.tensors)
        shown, counted = seen[0]
        self._check_stored_anew(shown)
        return Rehearsed(self, shown, counted, tuple(_movable(self.inputs, shown, self.tensors)))

    def _check_stored_anew(self, shown: RunFacts) -> None:
        """Refuse a program that stores state in a container that it makes: a recording reads a tensor where it lies, which is
        elsewhere in each call. One that is stored by itself may move."""
        rebound = {write.place for write in shown.writes if isinstance(write.value, Built)}
        for item in self.inputs:
            place = item.source.place if isinstance(item.source, State) else None
            if place is None or place.how is How.GRAD:
                continue
            above = next((step for step in place.steps if step is not place and step in rebound), None)
            if above is not None:
                raise self.runs.refuse(
                    str(above),
                    f"is stored anew in each call, with `{place}` in it, so that a recording finds it nowhere",
                    "store each tensor in an attribute of its own (self.h, self.c = h, c), or write in place (copy_)",
                )


@dataclass(frozen=True, eq=False)
class Rehearsed:
    """A program of which a run has shown what it returns and leaves. `counted`: inputs that autograd was told of as written."""

    prepared: Prepared
    shown: RunFacts
    counted: tuple[int, ...]
    movable: tuple[int, ...]

    def program(self) -> OpaqueProgram:
        """The program over the inputs that are needed. What was prepared is not run any more."""
        runs, is_step = self.prepared.runs, self._is_step()
        kept = self._kept(is_step=is_step)
        # What autograd is told of as written; the recording itself takes every input to be.
        inputs = tuple(replace(self.prepared.inputs[at], is_mutated=at in self.counted) for at in kept)
        shown = replace(self.shown, refs=renumbered(self.shown.refs, kept), writes=renumbered(self.shown.writes, kept))
        signature = opaque_signature(runs.found, inputs, runs.arguments, shown, runs.host, is_step=is_step)
        runs.forget()
        movable = frozenset(kept.index(at) for at in self.movable if at in kept)
        return OpaqueProgram(runs, signature, shown, movable, kept)

    def _is_step(self) -> bool:
        """Whether the program calls backward itself, as far as gradients show it."""
        sources = [self.prepared.inputs[at].source for at in self.counted]
        places = [write.place for write in self.shown.writes]
        places += [source.place for source in sources if isinstance(source, State)]
        return any(place.how is How.GRAD for place in places)

    def _kept(self, *, is_step: bool) -> tuple[int, ...]:
        """All inputs but those that nothing needs: gradients in a program that has none."""
        needed = set(inputs_used(values_in(self.shown.refs, self.shown.writes)))
        return tuple(
            at
            for at, item in enumerate(self.prepared.inputs)
            if is_step or at in needed or not (isinstance(item.source, State) and item.source.place.how is How.GRAD)
        )


@dataclass(frozen=True, eq=False)
class OpaqueProgram:
    """A program that can be recorded, and its signature.

    `kept` are those of the prepared tensors that are its inputs. Another tensor of the same spec may stand in for an input
    that is `movable`: an argument that shares no memory with anything, a gradient, or another slot that the program rebinds.
    All others are pinned: the program reads them where they lie, so a device gives no others in their places while it
    captures, and a call that finds one elsewhere than it was captured is a miss: the program is recorded anew.
    """

    runs: OpaqueRuns
    signature: Signature
    shown: RunFacts
    movable: frozenset[int]
    kept: tuple[int, ...]

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """The generators of the program's own, besides torch's default ones."""
        return tuple(self.runs.found.generators.values())

    def run(self, tensors: TensorSequence) -> list[torch.Tensor]:
        """Run the program in a recording, over `tensors`: the outputs. Leaves Python as it was, also if it raises.

        Raises `Refusal` if it does not do what it did when it was rehearsed, and `ProgramRaised` if it ends as a process or a
        task does (`SystemExit`, `CancelledError`): the call has its effects first. Other exceptions come out as they are.
        """
        try:
            outputs, shown, _ = self.runs.recorded(self.signature.inputs, tensors, self.movable)
        except BaseException as error:
            if isinstance(error, (Exception, KeyboardInterrupt)):  # Ctrl-C ends the call
                raise
            raise program_raised(error, "being recorded") from error
        self.runs.check_like(shown, self.shown)
        return outputs

    def plain(self, tensors: TensorSequence, numbers: Sequence[float] = ()) -> list[torch.Tensor]:
        """Run the program unrecorded, for its effects on today's tensors: the outputs. Leaves Python as it was.

        Raises `RanOtherwise`, with the result, if it does not do what it did when it was rehearsed.
        """
        return self.runs.plain(self.signature.inputs, tensors, self.shown)


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
        why = f"a tensor of class {type(tensor).__name__} and layout {tensor.layout} is not a plain strided one"
        advice = "convert it outside of the program"
    return Reason(op="argument", why=why, advice=advice, where=home_of(program))


def _input(tensor: torch.Tensor, names: list[str], found: Survey) -> Input:
    name, source = name_and_source(found.tensor_at(tensor), names)
    return Input(name, source, TensorSpec.of(tensor), is_mutated=True)


def _movable(inputs: Sequence[Input], shown: RunFacts, tensors: TensorSequence) -> Iterator[int]:
    rebound = {write.place for write in shown.writes}
    shared = {at for pair in overlapping(tensors, range(len(tensors))) for at in pair}
    for at, (item, tensor) in enumerate(zip(inputs, tensors, strict=True)):
        source = item.source
        is_slot = isinstance(source, State) and (source.place.how is How.GRAD or source.place in rebound)
        is_alone = at not in shared and not getattr(source, "also", ()) and not tensor.requires_grad
        if is_alone and (is_slot or isinstance(source, Argument)):
            yield at
