"""The kinds of guards: each holds what the traced run met in one object, and tells what differs there now.

    Table, Items, Members   dictionaries, lists, deques and sets: `containers.py`
    Asked          what a function gives: the content of a closure's cell, a slot, a weak reference, a setting
    Code           what a function is made of
    Data           the bytes of a NumPy array
    TensorFacts    what can be read of a tensor besides its values: `facts.py`, with HasGradient

A guard compares by identity first. A value that was replaced is the same if it is an immutable value that is exactly the same,
or a container in the only place that leads to it whose contents are the same; then the guard goes over to the new one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from treeplay.guards.alike import NO_WAYS, Elsewhere, Ways, check_of_plain
from treeplay.guards.memory import held
from treeplay.guards.patterns import Pattern
from treeplay.observe.shown import shown
from treeplay.values.kinds import builtin_of
from treeplay.values.mismatch import Mismatch
from treeplay.values.same import is_same

Commit = Callable[[], None]


class Comparison:
    """One comparison of all guards, and what to note if they all hold."""

    def __init__(self, containers: dict[int, ContainerGuard]) -> None:
        self.containers = containers
        self.commits: list[Commit] = []
        self.inner: Mismatch | None = None  # what differs in a container that was replaced
        self.moved: set[int] = set()  # guards that were found to go over to another container
        self.replaced: dict[int, torch.Tensor] = {}  # by the `id` of a tensor, what took its place
        self._instead: dict[int, bool] = {}  # containers that guards would go over to, as in `Elsewhere.staying`
        self._slots: list[tuple[Pattern, Any]] = []  # what was compared by `fits`

    def alike(self, before: Any, now: Any, ways: Ways | None = NO_WAYS) -> bool:
        """Whether a program that read `before` would do the same with `now`, but for the numbers at the end of `ways`."""
        if before is now or is_same(before, now):
            return True
        if type(before) is not type(now):
            return False
        if ways is None:
            return True
        if isinstance(before, tuple):
            pairs = enumerate(zip(tuple.__iter__(before), tuple.__iter__(now), strict=False))
            return len(before) == len(now) and all(
                self.alike(old, new, ways.get(at, NO_WAYS)) for at, (old, new) in pairs
            )
        guard = self.containers.get(id(before))
        if guard is not None and guard.may_be_replaced and guard.holder is before:  # not one that has its `id` by now
            other = self.containers.get(id(now))
            if other is not None and other.holder is now:  # it is another one's: two would become one
                return False
            inner = guard.differences(self, now)
            if inner is not None:
                self.inner = self.inner or inner
                return False
            self.moved.add(id(guard))
            self._instead[id(now)] = guard.elsewhere.staying.get(id(before), False)
            self.commits.append(lambda: self._go_over(guard, now))
            return True
        return False

    def fits(self, pattern: Pattern, found: Any) -> bool:
        """Whether what is found in a slot may be there, as far as nothing elsewhere was replaced."""
        self._slots.append((pattern, found))
        return pattern.fits(found)

    def slots_are_apart(self) -> bool:
        """Whether all of it may be there beside what was replaced elsewhere, by then or after the slot was compared."""
        return not self._instead or all(pattern.meets(found, [], self._instead) for pattern, found in self._slots)

    def _go_over(self, guard: ContainerGuard, now: Any) -> None:
        self.containers.pop(id(guard.holder), None)
        guard.elsewhere.go_over(guard.holder, now)
        guard.go_over_to(now)
        self.containers[id(now)] = guard


class Guard:
    """One condition, and how to say what broke it."""

    __slots__ = ()

    def differs(self, comparison: Comparison) -> Mismatch | None:
        """What is not as recorded; None if nothing is."""
        raise NotImplementedError

    def places(self) -> Iterator[tuple[str, Any]]:
        """What is guarded, by its place."""
        raise NotImplementedError


_MOST_TIMES = 2  # that a container changes in what does not matter: then a warm call compares its elements


class ContainerGuard(Guard):
    """A guard over a mutable container that may be found in another place of memory later, with the same in it.

    `free`: keys whose values the warm call checks by itself. `written`: those that a replay replaces, by the like of it, as
    `slots` tell. `of_facts`: those of tensors of which facts were read; one that is
    replaced is `filled` by others from then on, as a replay does it. `ways`: to the numbers in what is under a key that are
    inputs.
    `is_steady`: whether a warm call compares all of it with what was compared last, also what is free."""

    __slots__ = (
        "elsewhere",
        "filled",
        "free",
        "holder",
        "is_steady",
        "label",
        "may_be_replaced",
        "of_facts",
        "slots",
        "times",
        "ways",
        "written",
    )
    recorded: Any

    def __init__(self, holder: Any, label: str) -> None:
        self.holder = holder
        self.label = label
        self.free: set[Any] = set()
        self.written: set[Any] = set()
        self.of_facts, self.filled = set[Any](), set[Any]()
        self.slots: dict[Any, Pattern] = {}
        self.elsewhere = Elsewhere(frozenset(), {})
        self.ways: dict[Any, Ways] = {}
        self.may_be_replaced = False
        self.is_steady = True
        self.times = 0  # how often it has changed in what does not matter, and in nothing else

    def has_changed(self, times: int) -> None:
        """Note that it has done so for as many `times` now; after a few, it is not steady any more."""
        self.times = times
        self.is_steady = self.is_steady and times < _MOST_TIMES

    def differs(self, comparison: Comparison) -> Mismatch | None:
        return None if id(self) in comparison.moved else self.differences(comparison, self.holder)

    def differences(self, comparison: Comparison, holder: Any) -> Mismatch | None:
        """What of `holder` is not as recorded; None if nothing is."""
        raise NotImplementedError

    def is_alike(self, comparison: Comparison, key: Any, before: Any, found: Any) -> bool:
        """Whether what is found under a key may be instead of what was there."""
        if key in self.filled or (key in self.of_facts and before is not found):
            # One that is still there, too: nothing else guards the attributes that it may have by now.
            if not check_of_plain(before)(found):
                return False
            comparison.commits.append(lambda: self._fill(key))
            comparison.replaced[id(before)] = found
            return True
        if before is found or key in self.free:
            return True
        if key in self.slots:
            return comparison.fits(self.slots[key], found)
        return comparison.alike(before, found, self.ways.get(key, NO_WAYS))

    def content_at(self, key: Any) -> Any:
        """What is in the container today under a key or at a position."""
        return builtin_of(self.holder).__getitem__(self.holder, key)

    def _fill(self, key: Any) -> None:
        self.of_facts.discard(key)
        self.filled.add(key)
        self.written.add(key)

    def go_over_to(self, holder: Any) -> None:
        """Guard `holder` from now on, as it is now."""
        raise NotImplementedError

    def values(self, entries: Any) -> Iterable[Any]:
        """What is in the entries of such a container."""
        return entries  # type: ignore[no-any-return]

    def left_out(self) -> list[Any]:
        """What was in the container when it was recorded, is not any more, and has weak references to it."""
        recorded = [value for value in self.values(self.recorded) if weakref.getweakrefcount(value)]
        now = {*map(id, self.values(self.now()))} if recorded else ()
        return [value for value in recorded if id(value) not in now]

    def now(self) -> Any:
        """The entries, as they are now."""
        raise NotImplementedError


class Asked(Guard):
    """What a function without arguments gives: the content of a cell, a slot, a weak reference, a context variable."""

    __slots__ = ("ask", "attribute", "is_free", "is_fresh", "label", "recorded", "slot", "spot", "ways")

    def __init__(
        self,
        ask: Callable[[], Any],
        label: str,
        spot: tuple[int, Any] | None = None,
        *,
        attribute: tuple[Any, str] | None = None,
        is_fresh: bool = False,
    ) -> None:
        self.ask = ask
        self.label = label
        self.spot = spot  # the object that is asked, and for what, where a place may be the same
        self.attribute = attribute  # an object, and the name under which its class gives the same answer faster
        self.is_free = False  # whether the warm call checks it by itself
        self.slot: Pattern | None = None  # what may be in a place that a replay fills itself
        self.is_fresh = is_fresh  # whether each answer is a new object
        self.ways = NO_WAYS  # to the numbers in it that are inputs
        self.recorded = ask()

    def differs(self, comparison: Comparison) -> Mismatch | None:
        found = self.ask()
        if self.is_free:
            return None
        slot = self.slot
        if comparison.fits(slot, found) if slot is not None else comparison.alike(self.recorded, found, self.ways):
            comparison.commits.append(lambda: setattr(self, "recorded", found))
            return None
        return comparison.inner or differing(self.label, self.recorded, found)

    def places(self) -> Iterator[tuple[str, Any]]:
        yield self.label, self.recorded


class Code(Guard):
    """A function: its code, its defaults, and which they are.

    `is_asked`: whether the program may have asked for them. Else they count for calls alone: one that passed all arguments
    does not change by defaults where there were none."""

    __slots__ = ("code", "defaults", "function", "is_asked", "keywords", "label")

    def __init__(self, function: FunctionType, label: str, *, is_asked: bool = False) -> None:
        self.function = function
        self.label = label
        self.is_asked = is_asked
        self.code: CodeType = function.__code__
        self.defaults = function.__defaults__
        self.keywords = function.__kwdefaults__

    def differs(self, comparison: Comparison) -> Mismatch | None:
        if self.function.__code__ is not self.code:
            return Mismatch(f"{self.label}.__code__", shown(self.code), shown(self.function.__code__))
        defaults, keywords = self.function.__defaults__, self.function.__kwdefaults__
        for name, before, found in (
            ("__defaults__", self.defaults, defaults),
            ("__kwdefaults__", self.keywords, keywords),
        ):
            if not comparison.alike(before, found):
                return comparison.inner or differing(f"{self.label}.{name}", before, found)
        comparison.commits.append(lambda: self._go_over_to(defaults, keywords))  # or each call would compare them again
        return None

    def _go_over_to(self, defaults: tuple[Any, ...] | None, keywords: dict[str, Any] | None) -> None:
        self.defaults, self.keywords = defaults, keywords

    def places(self) -> Iterator[tuple[str, Any]]:
        if self.defaults:
            yield f"{self.label}.__defaults__", self.defaults


class Data(Guard):
    """A NumPy array, or other memory without tensors: its type, shape and bytes."""

    __slots__ = ("label", "recorded", "value")

    def __init__(self, value: Any, label: str) -> None:
        self.value = value
        self.label = label
        self.recorded = self.now()

    def now(self) -> Any:
        """What a program can read."""
        return held(self.value)

    def differs(self, _: Comparison) -> Mismatch | None:
        if self.now() == self.recorded:
            return None
        return Mismatch(self.label, f"the values of this {type(self.value).__name__} then", "others")

    def places(self) -> Iterator[tuple[str, Any]]:
        yield self.label, self.value


def differing(place: str, before: Any, found: Any) -> Mismatch:
    """A difference as text."""
    old, new = shown(before), shown(found)
    return Mismatch(place, old, new if new != old else "another object")
