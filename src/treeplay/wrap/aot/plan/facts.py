"""The frozen facts about one call pattern of a function that torch's ahead-of-time tracing took apart.

A graph returns its *values* in this order: new contents of written arguments, results, bases, and, in training, what
is saved for the backward; None in the place of new contents that it writes itself. Everything here is plain data: it can be
pickled, compared and hashed, and holds no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from treeplay.values.layout import Layout
from treeplay.values.output import Result
from treeplay.wrap.aot.plan.subclasses import Opened, Wrapper, graph_positions, width


@dataclass(frozen=True, slots=True)
class ArgumentWrite:
    """A change of an argument that follows the graph: its layout, its contents (from `value`), or both. The offset of the
    layout counts from where the argument begins.

    `is_tracked`: autograd sees it, as it would have seen the user's own. `is_versioned`: it moves the version.
    """

    argument: int
    value: int
    has_data: bool
    layout: Layout | None
    is_tracked: bool
    is_versioned: bool


@dataclass(frozen=True, slots=True)
class Member:
    """An argument that a common base stands for. `is_detached`: the base needs a gradient and the argument does not."""

    argument: int
    layout: Layout
    dtype: torch.dtype
    is_detached: bool


class Check(Enum):
    """What an argument was at the trace, as far as it decides how a call is tracked."""

    OTHER = "something else"
    TENSOR = "a tensor that needs no gradient"
    NEEDS_GRADIENT = "a tensor that needs a gradient"


@dataclass(frozen=True, slots=True)
class NoOverlap:
    """Inputs that must not overlap: the `written` ones neither each other nor any of the `others`.

    `lengths` are how many bytes each of them spans, in that order, in every call: whoever calls compares layouts, as guards do;
    None for one that is made of others. `distinct` are pairs that must only not be one object: of one of the two the shape
    changes, and no data."""

    written: tuple[int, ...]
    others: tuple[int, ...]
    lengths: tuple[int | None, ...] = ()
    distinct: tuple[tuple[int, int], ...] = ()

    def pairs(self) -> list[tuple[int, int]]:
        """All pairs, by their order in the call."""
        both = [(one, other) for k, one in enumerate(self.written) for other in self.written[k + 1 :]]
        both += [(one, other) for one in self.written for other in self.others]
        return sorted((min(pair), max(pair)) for pair in both)


class CommonBase(Enum):
    """What a common base is: one of its members, the tensor that members are views of, or a flat view made for the call."""

    MEMBER = "member"
    RECORDED = "recorded"
    FLAT = "flat"


@dataclass(frozen=True, slots=True)
class Base:
    """One tensor that replaces arguments which share memory, because some of them are written.

    It is, or is found through, the argument `source`. `moved` are arguments whose version a write to it does not move,
    though the user's write would.
    """

    whole: CommonBase
    source: int
    layout: Layout
    dtype: torch.dtype
    members: tuple[Member, ...]
    moved: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tangent:
    """The gradient that arrives for a value, and how the backward expects it to lie; `where` the value is made, if known."""

    value: int
    layout: Layout
    dtype: torch.dtype
    device: torch.device
    where: str = ""


@dataclass(frozen=True, slots=True)
class WrappedTangent:
    """The gradient that arrives for a value made of others; `parts` are its plain tensors, depth first."""

    value: int
    wrapper: Wrapper
    parts: tuple[Tangent, ...]
    where: str = ""


@dataclass(frozen=True, slots=True)
class LateWrite:
    """A write that the backward does: to an argument, or to the gradient that arrives as a tangent.

    `part` names the tensor that is written inside of an argument made of others, as in `.a.b`."""

    argument: int | None
    tangent: int | None
    needs_grad: bool
    part: str = ""


@dataclass(frozen=True, slots=True)
class BackwardGroup:
    """Results whose backwards meet where something was saved; those of two groups run without one another.

    `tangents` are their positions, `saved` those of the saved values that they need.
    """

    tangents: tuple[int, ...]
    saved: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeptInputs:
    """How a node keeps what it was called with, for derivatives of its backward.

    `held` inputs are kept, the others weakly; of the `versioned` ones the version is noted. `overwritten` by the call: of
    those that gradients depend on, `copied` holds what they were, or `saved` the place where that is saved anyway; of those
    that gradients lead to, `past` is where they lead."""

    held: tuple[int, ...]
    versioned: tuple[int, ...]
    overwritten: tuple[int, ...]
    copied: tuple[int, ...] = ()
    saved: tuple[tuple[int, int], ...] = ()
    past: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Draw:
    """An operator that draws random numbers: what it draws, where, and whether that is used: else compilers leave it out."""

    op: str
    drawn: tuple[str, ...]
    device: torch.device
    is_used: bool


@dataclass(frozen=True, slots=True)
class SeenElsewhere:
    """A saved value in memory that somebody sees otherwise: as an input, by its place, or as a returned value."""

    saved: int
    input: int | None = None
    value: int | None = None


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What the one autograd node of a training plan does.

    `returned` are the values that leave it, `differentiable` those among them that need a gradient. `saved` values come after
    all others; the last `unchecked` of them eager keeps without noticing later writes; before these come `inner` ones that
    nobody but the backward sees, which the forward may give in one block. `feeds` says, for each input, from which tangents (by
    position) its gradient comes; None where there is none at all: of these, the `detached` need one, and no value leads to
    them. `views` are returned values that lose their base on the way out. Of the saved values, `copied` lie in an argument
    which is written after the graph, `fresh` in new memory, others see that of those `elsewhere`. `late` are the backward's own
    writes; their values come after the gradients, and what the arguments among them hold goes in after the tangents. `groups`
    are there if there are several: eager has freed one of them by its backward, the others not. `generators` are the devices of
    the random generators that both graphs take as their last inputs; the backward takes `tokens` before them.
    `is_deterministic`: it was traced under deterministic mode. `is_whole`: zeros stand for gradients that did not come;
    otherwise there is a backward without them. `acts_for_some`: the backward acts, as by drawing, for some results or inputs
    only. `inputs` are kept if the backward can be differentiated, and where the generators stand of which the forward `draws`.
    """

    returned: tuple[int, ...]
    differentiable: tuple[int, ...]
    saved: int
    unchecked: int
    tangents: tuple[Tangent | WrappedTangent, ...]
    feeds: tuple[tuple[int, ...] | None, ...]
    detached: tuple[int, ...]
    views: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()
    fresh: tuple[int, ...] = ()
    elsewhere: tuple[SeenElsewhere, ...] = ()
    late: tuple[LateWrite, ...] = ()
    groups: tuple[BackwardGroup, ...] = ()
    generators: tuple[str, ...] = ()
    tokens: int = 0
    is_deterministic: bool = False
    is_whole: bool = False
    acts_for_some: bool = False
    inner: int = 0
    inputs: KeptInputs | None = None
    draws: tuple[Draw, ...] = ()

    @property
    def first_inner(self) -> int:
        """Which of the saved values is the first one that nobody but the backward sees."""
        return self.saved - self.unchecked - self.inner


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What happens before and after a graph so that the call acts like the user's function.

    `arguments` are names, for messages; `copies` are pairs (later, earlier) of positions that hold one object; `bases` replace
    arguments that share memory, and are numbered on from the arguments; `inputs` are what the graph takes, in order;
    `apart` says which of them must not overlap; `touched` are arguments that the graph writes itself, or that were
    changed in place and changed back; `layouts` are given to members of bases at the very end; `checks`, if wanted,
    are made first; `values` counts what the forward returns. `opened` says which inputs, values and gradients are
    tensors made of others: the graph sees what is inside of them. With `is_guarded`, something in front of the call has
    compared the classes of the arguments, and what these note, with the trace's. `tokens` come first among what the
    graph takes and returns: they keep operators with side effects in order. `awaited` are arguments that at the trace were
    still on their way from other processes. `begins` are arguments, and their storage offsets, that the program lays out
    anew counted from where their storage begins. In `results`, inputs are arguments, and new tensors are values, which may
    be numbers or None. `read_again` are arguments that eager's backward reads, too, in a checkpoint, and what they are called.
    """

    arguments: tuple[str, ...]
    copies: tuple[tuple[int, int], ...]
    apart: NoOverlap | None
    writes: tuple[ArgumentWrite, ...]
    touched: tuple[int, ...]
    results: tuple[Result, ...]
    values: int
    node: NodePlan | None
    grad_mode_after: bool | None
    inputs: tuple[int, ...]
    bases: tuple[Base, ...] = ()
    layouts: tuple[tuple[int, Layout], ...] = ()
    checks: tuple[Check, ...] = ()
    opened: Opened | None = None
    is_guarded: bool = False
    tokens: int = 0
    awaited: tuple[int, ...] = ()
    begins: tuple[tuple[int, int], ...] = ()
    read_again: tuple[tuple[int, str], ...] = ()

    def name(self, argument: int) -> str:
        """An argument as messages call it, or a common base."""
        return self.arguments[argument] if argument < (count := len(self.arguments)) else f"base{argument - count}"

    def variable(self, argument: int) -> str:
        """The variable of an argument in generated code, or of a common base: a user's name could hide what the code uses."""
        count = len(self.arguments)
        return f"arg{argument}" if argument < count else f"base{argument - count}"

    def wrapper(self, argument: int) -> Wrapper | None:
        """What an argument is made of, if it is a tensor made of others and the graph takes it."""
        if self.opened is None or argument not in self.inputs:
            return None
        return self.opened.arguments[self.inputs.index(argument)]

    @property
    def fits_every_call(self) -> bool:
        """Whether no call is refused for how its arguments lie in memory (`PatternChanged`)."""
        return not (self.copies or self.bases or self.begins or self.apart is not None)

    @property
    def returned_values(self) -> int:
        """How many values the graph itself returns, all but what is saved."""
        return self.tokens + (self.values if self.opened is None else self.opened.flat_values)

    def flat_gradients(self, node: NodePlan) -> int:
        """How many values the backward graph returns for the gradients of arguments."""
        return len(node.feeds) if self.opened is None else sum(map(width, self.opened.gradients))

    def places_of_inputs(self) -> list[range]:
        """For each of `inputs`, which inputs of the graph stand for it."""
        wrappers = (None,) * len(self.inputs) if self.opened is None else self.opened.arguments
        return graph_positions(wrappers, self.tokens)

    def places_of_values(self) -> list[range]:
        """For each of the values, which results of the graph stand for it."""
        return graph_positions(self.opened.values if self.opened is not None else (None,) * self.values, self.tokens)

    def __str__(self) -> str:
        kind = "inference" if self.node is None else "training"
        return f"{kind}: {len(self.arguments)} arguments, {len(self.writes)} writes, {len(self.results)} results"
