"""What may be in a place that a replay itself fills: the like of what was there when it was recorded."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from treeplay.guards.alike import NO_WAYS, Elsewhere, Ways, are_alike, check_of_plain, is_like, which_are_one
from treeplay.torch_seam.tensors import unusual
from treeplay.values.kinds import builtin_of, is_a, items, slots_in, table_of
from treeplay.values.records import held_in_record
from treeplay.values.same import is_same, is_value


class Pattern:
    """What was in a slot when it was recorded, as it was then: somebody may change it later, as who keeps an old list does.

    `meets` tells whether the like of it is there, and adds to a list the `id` of each tensor, container and record that it
    comes across: the same ones have to be one object as then."""

    __slots__ = ("_elsewhere", "_part", "parts")

    def __init__(self, recorded: Any, elsewhere: Elsewhere, ways: Ways | None = NO_WAYS) -> None:
        self._elsewhere = elsewhere
        self.parts: list[_Like] = []
        """Each part, of which one may hold an object of the program's."""
        self._part = _LikeTensor(is_like(recorded)) if is_a(recorded, torch.Tensor) else self._made(recorded, ways, ())

    def meets(self, found: Any, met: list[int], staying: Mapping[int, bool] | None = None) -> bool:
        """Whether what is found may be there: alike, and none of the objects that are `staying` in other places, as the program
        could tell that they are one."""
        staying = self._elsewhere.staying if staying is None else staying
        return self._part.fits(found, staying, met) and id(found) not in staying

    def fits(self, found: Any) -> bool:
        """Whether what is found may be there, as far as that tells."""
        return self.meets(found, [])

    @property
    def is_tensor(self) -> bool:
        """Whether a tensor is there, and nothing around it."""
        return isinstance(self._part, _LikeTensor)

    @property
    def may_be_shared(self) -> bool:
        """Whether something is there that others may change, and that may be in other slots too."""
        return any(isinstance(part, (_LikeContainer, _LikeRecord)) for part in self.parts)

    def _made(self, value: Any, ways: Ways | None, above: tuple[int, ...]) -> _Like:
        part = self._part_of(value, ways, above)
        self.parts.append(part)
        return part

    def _part_of(self, value: Any, ways: Ways | None, above: tuple[int, ...]) -> _Like:
        elsewhere = self._elsewhere
        if is_a(value, torch.Tensor):
            # Of one that is an input, the call asks what the run asked.
            return _LikeTensor(is_like(value) if id(value) in elsewhere.inputs else _check_of_unread(value))
        if ways is None:
            return _LikeNumber(type(value))
        if id(value) in above:  # one that leads to itself
            return _LikeItself(value, elsewhere)
        inner = (*above, id(value))
        if id(value) in elsewhere.opened:
            held = dict(held_in_record(value))
            parts = [self._made(each, ways.get(name, NO_WAYS), inner) for name, each in held.items()]
            return _LikeRecord(type(value), [*held], parts, elsewhere)
        if not is_a(value, (list, tuple, dict)) or (id(value) in elsewhere.staying and not is_a(value, tuple)):
            return _LikeItself(value, elsewhere)
        keys, values = _taken_apart(value)
        below = [ways.get(key, NO_WAYS) for key in (range(len(values)) if keys is None else keys)]
        parts = [self._made(each, way, inner) for each, way in zip(values, below, strict=True)]
        attributes = table_of(value)
        more = self._made(attributes, NO_WAYS, inner) if attributes is not None else None
        return _LikeContainer(type(value), keys, parts, more)


class Together:
    """Whether all slots with containers and objects in them hold what they may, and what is one object there was one, and two
    are two: the program could tell."""

    __slots__ = ("_order", "slots")

    def __init__(self, slots: Sequence[tuple[Callable[[], Any], Pattern]]) -> None:
        self.slots = slots
        met: list[int] = []
        self._order = which_are_one(met) if all(pattern.meets(ask(), met) for ask, pattern in slots) else None

    def __call__(self) -> bool:
        met: list[int] = []
        return all(pattern.meets(ask(), met) for ask, pattern in self.slots) and which_are_one(met) == self._order


class _Like:
    """A part of what was in a slot."""

    __slots__ = ()

    def fits(self, found: Any, staying: Mapping[int, bool], met: list[int]) -> bool:
        """Whether what is found may be in the place of it."""
        raise NotImplementedError


class _LikeTensor(_Like):
    __slots__ = ("_check",)

    def __init__(self, check: Callable[[Any], bool]) -> None:
        self._check = check

    def fits(self, found: Any, staying: Mapping[int, bool], met: list[int]) -> bool:
        met.append(id(found))
        return self._check(found)


class _LikeNumber(_Like):
    """A number that is an input."""

    __slots__ = ("_cls",)

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def fits(self, found: Any, staying: Mapping[int, bool], met: list[int]) -> bool:
        return type(found) is self._cls


class _LikeItself(_Like):
    """A value; a list or dictionary that stays elsewhere, which is itself; or an object that is itself or, if nothing of it was
    read, holds the like."""

    __slots__ = ("_elsewhere", "_is_container", "_is_value", "_value")

    def __init__(self, value: Any, elsewhere: Elsewhere) -> None:
        self._value = value
        self._elsewhere = elsewhere
        self._is_value = is_value(value)
        self._is_container = is_a(value, (list, dict))

    def fits(self, found: Any, staying: Mapping[int, bool], met: list[int]) -> bool:
        if self._is_value:
            return is_same(self._value, found)
        met.append(id(found))
        if found is self._value:
            return True
        if self._is_container or not _may_be_there(found, staying, self._elsewhere):
            return False
        return are_alike(self._elsewhere, self._value, found)


class _LikeContainer(_Like):
    """A tuple, or a list or dictionary that is in slots alone: one that stays elsewhere would be read, or written to, there."""

    __slots__ = ("_cls", "_keys", "_more", "_parts")

    def __init__(self, cls: type, keys: list[Any] | None, parts: Sequence[_Like], more: _Like | None) -> None:
        self._cls, self._keys, self._parts, self._more = cls, keys, parts, more

    def fits(self, found: Any, staying: Mapping[int, bool], met: list[int]) -> bool:
        if type(found) is not self._cls:
            return False
        if not isinstance(found, tuple):
            if id(found) in staying:
                return False
            met.append(id(found))
        keys, values = _taken_apart(found)
        if len(values) != len(self._parts) or (keys is not None and not all(map(is_same, keys, self._keys or ()))):
            return False
        if self._more is not None and not self._more.fits(table_of(found), staying, met):
            return False
        return _all_fit(self._parts, values, staying, met)


class _LikeRecord(_Like):
    """A record, of which what it holds counts, if it is none that the program can tell from the one that was there."""

    __slots__ = ("_cls", "_elsewhere", "_is_table", "_names", "_parts")

    def __init__(self, cls: type, names: list[str], parts: Sequence[_Like], elsewhere: Elsewhere) -> None:
        self._cls, self._names, self._parts, self._elsewhere = cls, names, parts, elsewhere
        # As most are: nothing is in slots.
        self._is_table = bool(cls.__dictoffset__) and not any(slots_in(base) for base in cls.__mro__)

    def fits(self, found: Any, staying: Mapping[int, bool], met: list[int]) -> bool:
        if type(found) is not self._cls or not _may_be_there(found, staying, self._elsewhere):
            return False
        met.append(id(found))
        values: Iterable[Any]
        if self._is_table:
            table = object.__getattribute__(found, "__dict__")
            if [*table] != self._names:
                return False
            values = table.values()
        else:
            held = [*held_in_record(found)]
            if [name for name, _ in held] != self._names:
                return False
            values = [value for _, value in held]
        return _all_fit(self._parts, values, staying, met)


def _may_be_there(found: Any, staying: Mapping[int, bool], elsewhere: Elsewhere) -> bool:
    """Whether an object may be where another one was: the run can have told it from none that it met elsewhere."""
    at = id(found)
    return at not in staying and at not in elsewhere.met and not (elsewhere.has_weak and weakref.getweakrefcount(found))


def _all_fit(parts: Sequence[_Like], values: Iterable[Any], staying: Mapping[int, bool], met: list[int]) -> bool:
    # Not a generator in `all`, which takes as long as what it asks.
    for part, value in zip(parts, values, strict=True):  # noqa: SIM110
        if not part.fits(value, staying, met):
            return False
    return True


def _taken_apart(value: Any) -> tuple[list[Any] | None, list[Any]]:
    """The keys of a dictionary, and a default factory behind them; and what is in it, or in a list or tuple."""
    if isinstance(value, tuple):
        return None, [*tuple.__iter__(value)]
    if not isinstance(value, dict):
        return None, items(value)
    entries = builtin_of(value)
    keys, values = [*entries.keys(value)], [*entries.values(value)]
    if isinstance(value, collections.defaultdict):
        return [*keys, _FACTORY], [*values, _factory_of(value)]
    return keys, values


_FACTORY = "default_factory of a dictionary"
_factory_of: Callable[[Any], Any] = vars(collections.defaultdict)["default_factory"].__get__


def _check_of_unread(recorded: torch.Tensor) -> Callable[[Any], bool]:
    """Whether a value may be instead of a tensor in a slot that no operator read."""
    is_plain = recorded.layout is torch.strided and not vars(recorded) and unusual(recorded) is None
    return check_of_plain(recorded) if is_plain else lambda value: value is recorded
