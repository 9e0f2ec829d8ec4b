"""Sizes that may be other ones in each call, and what has to hold of them."""

from __future__ import annotations

from dataclasses import dataclass, field


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
