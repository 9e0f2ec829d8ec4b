"""What a survey finds: places of tensors, objects and plain values, and how to ask what is there now."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.values.kinds import PLAIN
from treeplay.values.place import How, Place, Trail
from treeplay.values.same import is_same
from treeplay.values.signature import Gone

Container = dict[Any, Any] | list[Any] | set[Any] | collections.deque[Any]
GONE = Gone()


@dataclass(frozen=True, slots=True)
class Scaler:
    """A `GradScaler`, and its table of optimizers that stepped since its last update (None in one that is off)."""

    scaler: Any
    place: Place
    table: dict[Any, Any] | None
    was_idle: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "was_idle", self.table is not None and not self.table)


@dataclass(slots=True)
class Survey:
    """What was found. Tables are keyed by `id`; `kept` holds every object so that no id is used twice.

    `watched`: plain values and functions that the program reads, with what they are now. `cached`: functions with a cache
    (`functools.lru_cache`), which keep what they give. `cells`: single places that the
    program may rebind, with their contents (`GONE` where there is nothing). `iterators`: a trace would use them up. `memories`:
    NumPy arrays and the like, whose content a trace puts back. `namespaces`: globals that code may reach by computed names.
    """

    tensors: dict[int, list[Place]] = field(default_factory=dict)
    objects: dict[int, Place] = field(default_factory=dict)
    modules: dict[int, torch.nn.Module] = field(default_factory=dict)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    scalers: list[Scaler] = field(default_factory=list)
    generators: dict[int, torch.Generator] = field(default_factory=dict)
    generator_places: list[tuple[Place, torch.Generator]] = field(default_factory=list)
    watched: list[tuple[Place, Any]] = field(default_factory=list)
    containers: dict[int, Container] = field(default_factory=dict)
    container_places: dict[int, Place] = field(default_factory=dict)
    cached: list[Any] = field(default_factory=list)
    cells: list[tuple[Place, Any]] = field(default_factory=list)
    iterators: list[Place] = field(default_factory=list)
    memories: list[tuple[Any, Place]] = field(default_factory=list)
    namespaces: dict[int, dict[str, Any]] = field(default_factory=dict)
    of_thread: set[int] = field(default_factory=set)
    """Containers that belong to this thread alone, by `id`."""
    sealed: set[int] = field(default_factory=set)
    """Containers of the standard library's objects, and those that functions have cached, by `id`: no replay writes there."""
    given: dict[int, list[Place]] = field(default_factory=dict)
    """The containers among the arguments, by `id`: their places there, and last that in state."""
    of_math: Set[str] = frozenset()
    """The functions of `math` that code of the program reads as values, by name."""
    kept: list[Any] = field(default_factory=list)
    stand_ins: list[Any] = field(default_factory=list)
    """Tuples with symbols in them that take the places of the program's own while it is traced."""
    is_complete: bool = True

    def tensor_at(self, tensor: torch.Tensor) -> list[Place]:
        """Where `tensor` was found, the first place first; empty where it was not."""
        return self.tensors.get(id(tensor), [])

    def is_new(self, value: Any) -> bool:
        """Whether an object was not there before the run."""
        return id(value) not in self.objects and not any(value is kept for kept in self.kept)

    def groups_of(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[Place, dict[str, Any]]]:
        """The parameter groups of an optimizer that was found, each with its place."""
        place = self.objects[id(optimizer)].child(How.ITEM, vars(optimizer), "param_groups", "param_groups")
        for index, group in enumerate(optimizer.param_groups):
            yield place.child(How.ITEM, optimizer.param_groups, index, f"param_groups[{index}]"), group

    def watched_only(self) -> Survey:
        """The plain values alone: it keeps no tensor alive, such as a gradient that is set to None after the call."""
        return Survey(watched=self.watched)

    def changed(self, but: Collection[Trail] = ()) -> Place | None:
        """A plain value that the program reads and that is no longer what it was, or None; ways in `but` are left out."""
        found = (at for at, value in self.watched if not _is_as_it_was(at, value, at.read_or(GONE), but))
        return next(found, None)

    def plain_values(self, *, today: bool = False) -> dict[Trail, Any]:
        """The plain values that the program reads, as they were or as they are `today`, by the way to each."""
        values = ((place.trail, place.read_or(GONE) if today else value) for place, value in self.watched)
        return {
            trail: value for trail, value in values if trail is not None and (value is GONE or isinstance(value, PLAIN))
        }


def _is_as_it_was(place: Place, value: Any, now: Any, but: Collection[Trail]) -> bool:
    """Whether what is in a place is what it was, but for what may be another one: the place itself, or parts of a tuple."""
    if is_same(now, value) or place.trail in but:
        return True
    if not but or type(now) is not type(value) or not isinstance(value, tuple) or len(value) != len(now):
        return False
    return all(
        _is_as_it_was(place.child(How.ITEM, value, at, ""), old, new, but)
        for at, (old, new) in enumerate(zip(value, now, strict=True))
    )
