"""What a trace says of a program besides its graph: where inputs come from and where results go.

arguments ─┐                        ┌─▶ results
state ─────┼─▶ graph inputs ─ graph ┤
numbers ───┘                        └─▶ writes (slots such as `.grad`)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from treeplay.values.output import OutputRef
from treeplay.values.place import Place, Trail
from treeplay.values.sizes import AskedOfSizes
from treeplay.values.spec import TensorSpec
from treeplay.values.structure import Leaf, Structure


class Kind(Enum):
    """What sort of program it is, told apart by the trace."""

    WHOLE_STEP = "whole step"
    INFERENCE = "inference"
    DIFFERENTIABLE = "differentiable"  # the caller calls backward on the results


@dataclass(frozen=True, slots=True)
class MoveTo:
    """To which device a tensor is copied, and whether the host may go on meanwhile, as the program says."""

    device: torch.device
    non_blocking: bool


@dataclass(frozen=True, slots=True)
class Argument:
    """A graph input that is a tensor leaf of the call's arguments; `index` counts all leaves.

    `also` are places of state that must hold the same tensor (a parameter that is passed, say). A tensor on the CPU that the
    program does nothing with but move it to the GPU `moves_to` there before the graph runs.
    """

    index: int
    also: tuple[Place, ...] = ()
    moves_to: MoveTo | None = None


@dataclass(frozen=True, slots=True)
class Alias:
    """A tensor leaf of the arguments that is the very tensor of leaf `of`."""

    of: int


class Unread:
    """Stands for a leaf of the arguments in an attribute of an object that the program did not read."""

    def __repr__(self) -> str:
        return "unread"


@dataclass(frozen=True, slots=True)
class State:
    """A graph input read from a place on each call; `also` are places that must hold the same tensor."""

    place: Place
    also: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Constant:
    """A graph input that never changes: a tensor the program makes from Python numbers."""

    tensor: Any


@dataclass(frozen=True, slots=True)
class Input:
    """One tensor input of a graph, in order."""

    name: str
    source: Argument | State | Constant
    spec: TensorSpec
    is_mutated: bool
    is_leaf: bool | None = None  # of a differentiable program: whether it is where a backward ends
    begins: int | None = None  # its storage offset, where the program counts from the start of the storage
    is_told: bool = True  # whether eager tells autograd of what is written there
    is_read_again: bool = False  # whether a checkpoint reads it, and so does eager's backward

    @property
    def places(self) -> tuple[Place, ...]:
        """Where in the program's state its tensor is."""
        match self.source:
            case State(place, also):
                return place, *also
            case Argument(_, also):
                return also
        return ()

    def __str__(self) -> str:
        mark = "!" if self.is_mutated else ""
        label = self.source.place.label if isinstance(self.source, State) else self.name
        return f"{label}{mark}: {self.spec}"


@dataclass(frozen=True, slots=True)
class Number:
    """One number that is an input: called `name` in the graph, read from `place` on each call."""

    name: str
    place: Place
    value: float  # or an integer
    is_input: bool = True  # whether the graph reads it; else only a guard does
    is_exact: bool = True  # whether a float of NumPy's is another number than one of Python's


def is_integer_of_64_bits(value: object) -> bool:
    """Whether a value is an integer that a graph can be given: neither a bool nor beyond what a device computes with."""
    return type(value) is int and -(2**63) <= value < 2**63


def is_numpys_float(value: object) -> bool:
    """Whether a value is a float of NumPy's, in Python's precision."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.float64


def may_be_input(value: object) -> bool:
    """Whether a value is a number that a graph can be given."""
    return type(value) is float or is_integer_of_64_bits(value) or is_numpys_float(value)


@dataclass(frozen=True, slots=True)
class GivenContainer:
    """The very container among the call's arguments that a call function has in the variable `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class StateContainer:
    """The very container that is at a place of state when the call begins."""

    place: Place

    def __repr__(self) -> str:
        return f"Found({self.place})"


@dataclass(frozen=True, slots=True)
class Built:
    """A container that the program makes on each call, with tensors in it. One that is in several places has a number."""

    structure: Leaf | Structure
    refs: tuple[Ref, ...]
    number: int | None = None


Ref = OutputRef | GivenContainer | StateContainer | Built


def leaf_refs(ref: Ref) -> Iterator[Ref]:
    """A reference, or those that a container is built of."""
    if isinstance(ref, Built):
        for part in ref.refs:
            yield from leaf_refs(part)
    else:
        yield ref


class Gone:
    """Stands for a dictionary entry that the program removes."""

    def __repr__(self) -> str:
        return "gone"


@dataclass(frozen=True, slots=True)
class Write:
    """After a replay, `place` holds `value`."""

    place: Place
    value: Ref


def values_in(refs: Iterable[Ref], writes: Iterable[Write]) -> Iterator[Ref]:
    """What is returned and stored, containers taken apart."""
    for ref in (*refs, *(write.value for write in writes)):
        yield from leaf_refs(ref)


@dataclass(frozen=True, slots=True)
class Watch:
    """A plain value, function or object that the program met at `place`: it must still be `value`."""

    place: Place
    value: Any


@dataclass(frozen=True, slots=True)
class AskedFact:
    """What a program asked of a tensor that was there, by the name of the question, and the answer."""

    source: Argument | State
    label: str
    name: str
    answer: Any


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two containers of the arguments, by name, or one and a place of state: whether they are one object."""

    name: str
    other: str | Place
    are_one: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """Which objects the containers of the arguments may be, each by the variable that a call function has it in.

    `themselves`: with what gives the very one. `strangers`: with the `id`s of objects of its class that the run met elsewhere.
    `distinct`: those of a class that are as many objects. `slots`: places that a replay writes to, with which of these
    containers are in what is there (`which_in`)."""

    themselves: tuple[tuple[str, Callable[[], Any]], ...] = ()
    strangers: tuple[tuple[str, Set[int]], ...] = ()
    distinct: tuple[tuple[str, ...], ...] = ()
    slots: tuple[tuple[Place, tuple[str, ...], tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Signature:
    """All that a call must do around the graph."""

    kind: Kind
    arguments: Leaf | Structure
    leaves: tuple[Any, ...]  # of the arguments: a TensorSpec or Alias for a tensor, else the static value or Unread
    inputs: tuple[Input, ...]
    numbers: tuple[Number, ...]
    guards: tuple[Any, ...]  # over the numbers
    watches: tuple[Watch, ...]
    identities: tuple[Watch, ...]  # objects on the way that must stay the same
    lengths: tuple[Watch, ...]  # containers on the way that must keep their length
    results: Leaf | Structure
    refs: tuple[Ref, ...]
    writes: tuple[Write, ...]
    outputs: int  # how many outputs the graph has
    answer: int | None = (
        None  # the output that says whether all values passed the program's checks, where a call reads it
    )
    guarded: Any = None  # the guards over everything that the traced run read
    met: tuple[tuple[Constant | State, TensorSpec], ...] = ()  # tensors that are no inputs, and an argument could be
    meetings: tuple[Meeting, ...] = ()  # of containers that are returned, stored or written to
    identity: Identity = Identity()
    is_inference: bool | None = (
        None  # whether new tensors are of inference mode, where the program sets it; None: as the call
    )
    classes: tuple[type, ...] = ()  # of the tensors that are checked: the arguments', then those of state
    schedules: tuple[Any, ...] = ()  # of learning rates: each call steps them when all else is done
    state_numbers: tuple[Trail, ...] = ()  # the ways to numbers of the state that were to be inputs
    sizes: AskedOfSizes | None = None  # of a recording that serves more than one set of sizes
    facts: tuple[
        AskedFact, ...
    ] = ()  # that the program asked, and that other tensors of these specs may answer otherwise
    host_reads: tuple[tuple[Any, Any], ...] = ()  # operators that read constants on the host, and what they gave
    called: frozenset[str] | None = None  # names of operators and builtin functions that ran; None if that is not known

    @property
    def mutated(self) -> tuple[int, ...]:
        """Indices of the inputs that the graph writes to."""
        return tuple(index for index, item in enumerate(self.inputs) if item.is_mutated)

    @property
    def values(self) -> Iterator[Ref]:
        """What is returned and stored, containers taken apart."""
        return values_in(self.refs, self.writes)

    def __str__(self) -> str:
        return (
            f"{self.kind.value}: {len(self.inputs)} tensors, {len(self.numbers)} numbers in, "
            f"{self.outputs} tensors out, {len(self.mutated)} written in place, {len(self.writes)} slots"
        )
