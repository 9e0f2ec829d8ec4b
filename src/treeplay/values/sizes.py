"""Sizes that may be other ones in each call, and what has to hold of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from treeplay.values.location import Location
from treeplay.values.refusal import Reason

SIZES = "sizes"
"""What reasons are about that tell why nothing serves all sizes."""
ONE_BY_ONE = "nothing: sizes are recorded one by one, within the budget"


def not_for_all(why: str, where: Location | None = None, *, advice: str = ONE_BY_ONE) -> Reason:
    """Why nothing is compiled for all sizes."""
    return Reason(SIZES, f"not compiled for all at once: {why}", advice, where)


@dataclass(frozen=True, slots=True)
class SizeOf:
    """A number of a tensor that is an input: its size or stride at a dimension, or its storage offset."""

    name: str  # in questions
    input: int
    what: str  # a method of the tensor
    dimension: int | None

    @property
    def text(self) -> str:
        """The call that gives it, of a tensor in front of it."""
        return f".{self.what}({'' if self.dimension is None else self.dimension})"


@dataclass(frozen=True, slots=True)
class AskedOfSizes:
    """Questions about sizes, as Python expressions over names, that have to be answered with yes."""

    numbers: tuple[SizeOf, ...]
    questions: tuple[str, ...]
    changing: tuple[str, ...]  # the sizes that change, by name
    elsewhere: set[tuple[int, ...]] = field(default_factory=set, compare=False)
    """Values of these that have a recording of their own. That set changes as recordings come and go."""
