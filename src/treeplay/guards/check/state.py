"""State that a warm call reads anew, as others may have been put there: still different tensors, with the same attributes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.values.kinds import is_a
from treeplay.values.place import How, Place, Start

_grad_of = operator.attrgetter("grad")


class StateCheck:
    """Whether state that is read anew, and what others fill places with, is still different tensors, with the attributes that
    are guarded.

    What stays as long as the other guards hold is not read again: hundreds of weights, in a training step."""

    __slots__ = ("_before", "_filled", "_fixed", "_gradients", "_holders", "_others", "_read", "read_anew")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Hold nothing any more."""
        self.compare((), (), before=(), filled=(), fixed=frozenset(), holders={})

    def compare(
        self,
        loose: Sequence[Place],
        others: Sequence[Place],
        *,
        before: Sequence[int],
        filled: Sequence[Callable[[], Any]],
        fixed: frozenset[int],
        holders: Mapping[int, dict[Any, Any]],
    ) -> None:
        """Compare with the present from here on: what is at `loose` places, which may be replaced without another guard
        telling of it, and of which `before` are the attributes, by their `id`; at `others`; what `filled` gives; and tensors
        that stay, `fixed` by their `id`. `holders` are the dictionaries that are guarded, by `id`."""
        self.read_anew = (*loose, *others)
        self._read = reader_of(loose)
        self._gradients = [place.holder for place in others if _is_gradient(place)]
        self._others = [place for place in others if not _is_gradient(place)]
        self._before, self._filled, self._fixed, self._holders = before, filled, fixed, holders

    def __call__(self) -> bool:
        loose = self._read()
        found = [*loose, *map(_grad_of, self._gradients)]
        if self._others or self._filled:
            found += [place.read_or(None) for place in self._others]
            found += [content() for content in self._filled]
        fixed = self._fixed
        anew = [id(tensor) for tensor in found if isinstance(tensor, torch.Tensor)]
        apart = {*anew}
        if len(apart) != len(anew) or not apart.isdisjoint(fixed):
            return False
        holders = self._holders
        for value, before in zip(loose, self._before, strict=True):
            attributes = vars(value) if isinstance(value, torch.Tensor) else {}
            if (attributes or holders.get(before)) and id(attributes) != before:
                return False
        return True


def _is_gradient(place: Place) -> bool:
    return place.how is How.GRAD and is_a(place.holder, torch.Tensor)


@dataclass(slots=True, eq=False)
class _Spot:
    """Something that is read, where it is among all that was read, and the steps that start from it."""

    at: int = -1
    below: dict[Any, tuple[Place, _Spot]] = field(default_factory=dict)


def reader_of(places: Sequence[Place]) -> Callable[[], Sequence[Any]]:
    """What gives what a call finds at each of these places, `place.anew().read()`. Each container on the way is read once."""
    if not places:
        return tuple
    roots: dict[int, tuple[Any, _Spot]] = {}
    ends = [_spot_of(place, roots) for place in places]
    starts = [start for start, _ in roots.values()]
    spots = [spot for _, spot in roots.values()]
    for at, spot in enumerate(spots):
        spot.at = at
    steps: list[tuple[int, bool, Callable[[Any], Any]]] = []
    # Grows while it is gone through: in the order in which a call reads.
    for spot in spots:
        for together in _groups(spot):
            steps.append((spot.at, len(together) > 1, _taking([place for place, _ in together])))
            for _, below in together:
                below.at = len(spots)
                spots.append(below)
    which = [spot.at for spot in ends]
    first = len(spots) - len(which)
    # As it is with one container of tensors: these are what was read last.
    tail = first if which == [*range(first, len(spots))] else None

    def read() -> Sequence[Any]:
        found = [*starts]
        for at, are_many, take in steps:
            if are_many:
                found += take(found[at])
            else:
                found.append(take(found[at]))
        return found[tail:] if tail is not None else [found[at] for at in which]

    return read


def _spot_of(place: Place, roots: dict[int, tuple[Any, _Spot]]) -> _Spot:
    """Where what is at `place` will be; steps are shared with places that are reached by the same ones."""
    if place.parent is not None and place.is_read_anew:
        above = _spot_of(place.parent, roots)
    else:
        _, above = roots.setdefault(id(place.holder), (place.holder, _Spot()))
    if place.how in (How.ROOT, How.ARGUMENT):
        return above
    entry = place.how, place.starts, place.key if type(place.key) in (int, str) else id(place.key)
    return above.below.setdefault(entry, (place, _Spot()))[1]


def _groups(spot: _Spot) -> Iterator[list[tuple[Place, _Spot]]]:
    """The steps from one start, those together that can be taken at once."""
    together: dict[Any, list[tuple[Place, _Spot]]] = {}
    for place, below in spot.below.values():
        key = (place.how, place.starts) if _is_simple(place) else id(below)
        together.setdefault(key, []).append((place, below))
    yield from together.values()


def _is_simple(place: Place) -> bool:
    """Whether a getter of Python's takes this step as the place does."""
    match place.how:
        case How.ITEM:  # a defaultdict would make an entry
            return place.starts is not Start.TABLE and not hasattr(type(place.holder), "__missing__")
        case How.ATTRIBUTE:
            return "." not in place.key
        case _:
            return False


def _taking(places: Collection[Place]) -> Callable[[Any], Any]:
    """What takes these steps, and gives a tuple if there are several."""
    first = next(iter(places))
    if not _is_simple(first):
        return lambda value: first.read_in(first.start_in(value))
    getter = operator.itemgetter if first.how is How.ITEM else operator.attrgetter
    return getter(*(place.key for place in places))
