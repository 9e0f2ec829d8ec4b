"""What a traced function takes in place of the user's arguments: without copies, and with common bases.

arguments      x[:4], w, x[2:], w      kept apart by position
copies         x[:4], w, x[2:]         a written tensor that stands twice is passed once
bases          x, w                    written tensors that overlap are views of one
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from treeplay.values.layout import Layout
from treeplay.wrap.aot.plan.bases import WrittenArguments, find_bases, layout_of, share_storage, take_base, view_of_base
from treeplay.wrap.aot.plan.facts import Base


@dataclass(slots=True)
class RunNotes:
    """What only the function sees while it runs: results that are members of a base, members' new layouts, and detached
    members that a write gave a history."""

    members: dict[int, int] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    grown: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which inputs a function of `count` arguments is traced with. Bases are numbered on from the arguments.

    For the inputs at `aliased` the function gets aliases: torch differentiates with respect to what a tensor is in the end,
    and loses what was computed from it before its shape was changed in place and changed back."""

    count: int
    copies: tuple[tuple[int, int], ...] = ()
    bases: tuple[Base, ...] = ()
    aliased: frozenset[int] = frozenset()

    @property
    def kept(self) -> tuple[int, ...]:
        """The arguments that are no copies."""
        dropped = {later for later, _ in self.copies}
        return tuple(k for k in range(self.count) if k not in dropped)

    @property
    def inputs(self) -> tuple[int, ...]:
        """What the traced function takes: bases by first member, then all other arguments."""
        members = {member.argument for base in self.bases for member in base.members}
        bases = tuple(self.count + k for k in range(len(self.bases)))
        return (*bases, *(k for k in self.kept if k not in members))

    def samples(self, samples: Sequence[Any]) -> list[Any]:
        """The inputs that stand for these arguments."""
        bases = [take_base(base, samples) for base in self.bases]
        return [bases[k - self.count] if k >= self.count else samples[k] for k in self.inputs]

    def adapted(self, function: Callable[..., Any], noted: RunNotes) -> Callable[..., Any]:
        """The function of these inputs."""
        if not self.copies and not self.bases and not self.aliased:
            return function
        inputs, earlier = self.inputs, dict(self.copies)

        def arranged(*given: Any) -> list[Any]:
            seen = [value.view_as(value) if k in self.aliased else value for k, value in enumerate(given)]
            at = dict(zip(inputs, seen, strict=True))
            members = {}
            for k, base in enumerate(self.bases):
                for member in base.members:
                    members[member.argument] = view_of_base(at[self.count + k], member)
            at |= members
            results = list(function(*(at[earlier.get(k, k)] for k in range(self.count))))
            noted.members = _members_among(results, members)
            detached = [member.argument for base in self.bases for member in base.members if member.is_detached]
            noted.grown = [argument for argument in detached if members[argument].requires_grad]
            noted.layouts = _new_layouts(self.bases, members)
            # A result that is one of the aliases is the input itself.
            whole = {id(alias): value for alias, value in zip(seen, given, strict=True)}
            return [None if k in noted.members else whole.get(id(result), result) for k, result in enumerate(results)]

        return arranged


def _members_among(results: Sequence[Any], members: dict[int, torch.Tensor]) -> dict[int, int]:
    """Which results are members: they are not traced, and the caller gets its own tensor back."""
    found = {id(member): argument for argument, member in members.items()}
    return {k: found[id(result)] for k, result in enumerate(results) if id(result) in found}


def _new_layouts(bases: Sequence[Base], members: dict[int, torch.Tensor]) -> dict[int, Layout]:
    """The layouts of members whose shape was changed in place, counted from where they began."""
    known = {member.argument: member.layout for base in bases for member in base.members}
    now = {argument: layout_of(member) for argument, member in members.items()}
    return {
        argument: replace(layout, offset=layout.offset - known[argument].offset)
        for argument, layout in now.items()
        if layout != known[argument]
    }


def copies_among(samples: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Pairs (later, earlier) of positions that hold one tensor."""
    first: dict[int, int] = {}
    return tuple(
        (k, first[id(sample)])
        for k, sample in enumerate(samples)
        if isinstance(sample, torch.Tensor) and first.setdefault(id(sample), k) != k
    )


def needs_arrangement(samples: Sequence[Any]) -> bool:
    """Whether samples share memory, so that it matters which of them are written."""
    return bool(copies_among(samples)) or share_storage(samples)


def arrange(samples: Sequence[Any], names: Sequence[str], written: WrittenArguments, *, any_write: bool) -> Arrangement:
    """Drop copies if anything is written, then find the common bases of what is left."""
    count = len(samples)
    if not any_write:
        return Arrangement(count)
    without_copies = Arrangement(count, copies_among(samples))
    earlier = dict(without_copies.copies)
    kept = WrittenArguments(frozenset(earlier.get(k, k) for k in written.arguments), written.where)
    return Arrangement(count, without_copies.copies, find_bases(samples, without_copies.kept, names, kept))
