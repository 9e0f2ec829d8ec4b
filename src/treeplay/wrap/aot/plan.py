"""The frozen facts about one call pattern of a function that torch's ahead-of-time tracing took apart.

A graph returns its *values* in this order: new contents of written arguments, results, bases, and, in training, what
is saved for the backward. Everything here is plain data: it can be pickled, compared and hashed, and holds no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from treeplay.wrap.aot.subclasses import Opened, Wrapper


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies in its storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Flag(Enum):
    """What is done so that a rebuilt view needs a gradient exactly where eager's does."""

    KEEP = "keep"
    DETACH = "detach"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a view is taken again: the pickled view steps of the trace, or else its layout."""

    steps: bytes | None
    layout: Layout
    flag: Flag


@dataclass(frozen=True, slots=True)
class Write:
    """A change of an argument that follows the graph: its layout, its contents (from `value`), or both.

    `is_tracked`: autograd sees it, as it would have seen the user's own.
    """

    argument: int
    value: int
    has_data: bool
    layout: Layout | None
    is_tracked: bool


@dataclass(frozen=True, slots=True)
class New:
    """A result that the graph made; also a number, or None."""

    value: int


@dataclass(frozen=True, slots=True)
class Same:
    """A result that is an argument."""

    argument: int


@dataclass(frozen=True, slots=True)
class Again:
    """A result that is an earlier result."""

    result: int


@dataclass(frozen=True, slots=True)
class ViewOfArgument:
    """A result that is a view of the caller's own tensor."""

    argument: int
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class ViewOfValue:
    """A result that is a view of something that the graph made and returned."""

    value: int
    recipe: Recipe


Result = New | Same | Again | ViewOfArgument | ViewOfValue


@dataclass(frozen=True, slots=True)
class Tangent:
    """The gradient that arrives for a value, and how the backward expects it to lie."""

    value: int
    layout: Layout
    dtype: str
    device: str


@dataclass(frozen=True, slots=True)
class WrappedTangent:
    """The gradient that arrives for a value made of others; `parts` are its plain tensors, depth first."""

    value: int
    wrapper: Wrapper
    parts: tuple[Tangent, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """What the one autograd node of a training plan does.

    `returned` are the values that leave it, `differentiable` those among them that need a gradient. `saved` values
    come after all others; the last `unchecked` of them eager keeps without noticing later writes. `feeds` says, for
    each argument, from which tangents (by position) its gradient comes; None where there is no gradient at all.
    `generators` are the devices of the random generators that both graphs take as their last inputs; the backward takes
    `tokens` before them. `is_deterministic`: it was traced under deterministic mode.
    """

    returned: tuple[int, ...]
    differentiable: tuple[int, ...]
    saved: int
    unchecked: int
    tangents: tuple[Tangent | WrappedTangent, ...]
    feeds: tuple[tuple[int, ...] | None, ...]
    detached: tuple[int, ...]
    generators: tuple[str, ...] = ()
    tokens: int = 0
    is_deterministic: bool = False


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What happens before and after a graph so that the call acts like the user's function.

    `arguments` are names; `copies` are pairs (later, earlier) of positions that hold one object; `apart` are pairs of
    positions that must not overlap, because one of the two is written; `touched` are arguments that were changed in
    place and changed back; `values` counts what the forward returns. `opened` says which of all these are tensors made
    of others: the graph sees what is inside of them. With `is_guarded`, something in front of the call has compared the
    classes of the arguments, and what these note, with the trace's. `tokens` come first among what the graph takes and
    returns: they keep operators with side effects in order. With `has_functional_random`, each graph takes the seed and
    offset of the device's generator last, and returns the new offset after its other values.
    """

    arguments: tuple[str, ...]
    copies: tuple[tuple[int, int], ...]
    apart: tuple[tuple[int, int], ...]
    writes: tuple[Write, ...]
    touched: tuple[int, ...]
    results: tuple[Result, ...]
    values: int
    node: Node | None
    grad_mode_after: bool | None
    opened: Opened | None = None
    is_guarded: bool = False
    tokens: int = 0
    has_functional_random: bool = False

    @property
    def returned_values(self) -> int:
        """How many values the graph itself returns, all but what is saved."""
        return self.tokens + self.flat_values + self.has_functional_random

    @property
    def flat_values(self) -> int:
        """How many places of the graph `values` take."""
        return self.values if self.opened is None else self.opened.flat_values

    def __str__(self) -> str:
        kind = "inference" if self.node is None else "training"
        return f"{kind}: {len(self.arguments)} arguments, {len(self.writes)} writes, {len(self.results)} results"
