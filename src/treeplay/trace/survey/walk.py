"""The walk of a survey: what it met, what waits to be looked at, and what was found, which ends as a `Survey`.

In come values with their places and the names that lead to them (`enter`). Breadth first, each object once; tensors and plain
values are written down at once, and all else waits for `program.py`, `functions.py` and `objects.py` to say what
it leads to.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Set
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from treeplay.torch_seam.layers import TENSOR_HOOKS
from treeplay.torch_seam.tensors import is_initialised
from treeplay.trace.restore.random_sources import is_source
from treeplay.trace.survey.found import GONE, Container, Survey
from treeplay.trace.survey.names import ALWAYS, Names, ReadNames, is_users_class
from treeplay.values.kinds import MUTABLE_CONTAINERS, PLAIN, hands_items_out, is_a, is_leaf, slots_of
from treeplay.values.place import How, Place, root

_NUMBERS = (bool, int, float, complex)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_CONSTANTS = (enum.Enum, torch.dtype, torch.device, torch.Size)
_MOST_OBJECTS = 200_000


class SurveyWalk:
    """What was met and found. `needs` are the names on the way to a value."""

    def __init__(self, ran: Set[str] = frozenset()) -> None:
        self.found = Survey()
        self.names = ReadNames(ran)
        self.seen: set[int] = set()
        self.candidates: list[tuple[Names, Place, Any]] = []  # plain values, of which those count that code can read
        self.iterators: list[tuple[Names, Place]] = []
        self.classes: list[type] = []  # the user's own
        self.named: set[type] = set()  # classes that code names, and so may make instances of
        # Tuples in several places: that they are one object is to be seen in a trace, too.
        self._shared: set[int] = set()
        self._waiting: collections.deque[tuple[Any, Place, Names]] = collections.deque()
        self._roots: dict[str, dict[int, Place]] = collections.defaultdict(dict)

    def root(self, value: Any, label: str) -> Place:
        """A place that is a constant of the program. Several may have one label, as cells of closures of one function: they
        are told apart by the order in which they are met, which is the same in each survey."""
        alike = self._roots[label]
        return alike.setdefault(id(value), root(value, label, nth=len(alike)))

    def enter(self, value: Any, place: Place, needs: Names) -> None:
        """Follow `value`, which is at `place`."""
        if is_a(value, torch.Tensor):
            self._tensor(value, place)
            return
        # A root is no place, in which something else could be.
        if _is_watchable(value) and place.how is not How.ROOT:
            self.candidates.append((needs, place, value))
        if is_a(value, torch.Generator) and place.how is not How.ROOT:
            self.found.generator_places.append((place, value))
        elif is_a(value, BuiltinFunctionType) and is_source(value.__self__):  # `draw = rng.random`
            self.enter(value.__self__, self.root(value.__self__, str(place)), needs)
        elif is_a(value, BuiltinFunctionType) and _is_of_data(value.__self__):
            self.enter(value.__self__, self.root(value.__self__, str(place)), needs)  # `find = table.get`
        if is_a(value, type):
            if issubclass(value, enum.Enum) and value not in self.classes:
                self.classes.append(value)  # of which nothing but its methods counts
            if not is_users_class(value):
                return
            if place.how is not How.ROOT:
                self.named.add(value)
        if is_a(value, tuple) and id(value) in self.seen:
            self._shared.add(id(value))
        if not is_a(value, (*PLAIN, BuiltinFunctionType)) and id(value) not in self.seen:
            self.seen.add(id(value))
            self.found.kept.append(value)
            self._waiting.append((value, place, needs))

    def enter_place(self, place: Place, needs: Names) -> None:
        """Follow what is at a place of its own, which is in no container that is put back as a whole."""
        value = place.read_or(GONE)
        self.found.cells.append((place, value))
        if value is not GONE:
            self.enter(value, place, needs)

    def keep(self, container: Container, place: Place) -> None:
        """Note a container that a trace puts back as a whole."""
        self.found.containers[id(container)] = container
        self.found.container_places[id(container)] = place

    def keep_sealed(self, container: Container, place: Place) -> None:
        """Note a container that a trace puts back, and no replay writes to: no guard comes across it."""
        self.keep(container, place)
        self.found.sealed.add(id(container))

    @property
    def is_waiting(self) -> bool:
        """Whether something was entered that nobody has looked at."""
        return bool(self._waiting)

    def next(self) -> tuple[Any, Place, Names] | None:
        """What was entered first of all that waits; None if the program reaches too much."""
        if len(self.seen) > _MOST_OBJECTS:
            return None
        return self._waiting.popleft()

    def result(self, *, is_complete: bool) -> Survey:
        """What was found, once nothing waits, with the plain values and iterators that count as read."""
        self.found.is_complete = is_complete
        self.found.watched = [
            (place, value)
            for needs, place, value in self.candidates
            if not (is_a(place.holder, tuple) and id(place.holder) in self._shared)
            and self.names.has_value(needs, is_function=is_a(value, _FUNCTIONS), is_number=is_a(value, _NUMBERS))
        ]
        self.found.of_math = self.names.of_math
        self.found.iterators = [place for needs, place in self.iterators if self.names.has_iterator(needs)]
        return self.found

    def _tensor(self, tensor: torch.Tensor, place: Place) -> None:
        if not is_initialised(tensor):
            return  # it has no memory yet, and becomes another tensor when it gets some
        places = self.found.tensors.setdefault(id(tensor), [])
        places.append(place)
        if len(places) == 1:
            self.found.kept.append(tensor)
            if is_users_class(cls := type(tensor)):  # whose code operators run
                self.enter(cls, self.root(cls, cls.__qualname__), ALWAYS)
            if place.how is not How.ARGUMENT:  # in its place stands another tensor while the program is traced
                self.keep_sealed(vars(tensor), place)
            for name, value in vars(tensor).items():
                here = place.child(How.ATTRIBUTE, tensor, name, f"{place}.{name}")
                if is_a(value, (*PLAIN, torch.nn.Module)):  # as geoopt's parameters have the manifold that they are of
                    self.enter(value, here, frozenset({name}))
                elif is_a(value, MUTABLE_CONTAINERS) and place.how is not How.ARGUMENT:
                    self.keep_sealed(value, here)
            for name, hidden in slots_of(tensor) if place.how is not How.ARGUMENT else ():
                how, key = (How.ATTRIBUTE, name) if hidden is None else (How.SLOT, hidden)
                self.enter_place(place.child(how, tensor, key, f"{place}.{name}"), frozenset({name}))
            for table in TENSOR_HOOKS:  # which a backward of the program runs
                for hook in (getattr(tensor, table, None) or {}).values():
                    self.enter(hook, self.root(hook, f"a hook of {place}"), ALWAYS)
            if is_leaf(tensor) and tensor.grad is not None:
                self._tensor(tensor.grad, place.grad_of(tensor))


def _is_of_data(value: Any) -> bool:
    return is_a(value, MUTABLE_CONTAINERS) or hands_items_out(value)


def _is_watchable(value: Any) -> bool:
    """Whether `value` is a constant of the program: it cannot change, only be replaced."""
    if type(value) is tuple:
        return bool(value) and all(is_a(item, PLAIN) for item in value)
    return is_a(value, (*PLAIN, *_FUNCTIONS, *_CONSTANTS))
