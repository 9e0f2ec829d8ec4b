"""Places: how to find again, on each call, what a program reaches without being given it.

A place is found by steps from something that the program holds for good (a closure cell, a module's globals, `self`), each to
an item of a dict, an attribute, the content of a closure cell, or the gradient of a tensor. Each step starts from an object.

    root globals ── item "model" ── (module: must stay the same object)
                                       └─ item "weight" of its _parameters ── a tensor: read anew on each call
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, NamedTuple

from treeplay.values.kinds import PLAIN, table_of
from treeplay.values.records import is_record, setter_of


class How(Enum):
    """The step from a parent's value to a place's value."""

    ROOT = auto()  # a constant of the program
    ITEM = auto()  # parent[key]
    ATTRIBUTE = auto()  # getattr(parent, key)
    SLOT = auto()  # key.__get__(parent), where a derived class has something else under the slot's name
    CELL = auto()  # parent.cell_contents
    GRAD = auto()  # parent.grad
    ARGUMENT = auto()  # a leaf of the call's arguments; only the parent of other places


class Start(Enum):
    """What the step to a place starts from on each call."""

    FIXED = auto()  # the object that it started from when the place was seen, which must stay the same
    PARENT = auto()  # the parent's value of the day
    TABLE = auto()  # the dictionary of attributes of the record that is the parent's value of the day


class NthKey(NamedTuple):
    """A key of a dictionary that is an object, by its position."""

    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a value is found. `holder` is the object that the step starts from, as it was when the place was seen.

    Two are equal if they are the same entry of the same object."""

    how: How
    holder: Any
    key: Any
    parent: Place | None
    label: str
    _start: Start | None = None

    @property
    def trail(self) -> Trail | None:
        """The way here from the root, which tells the same place in another survey and keeps nothing alive; None where
        something on it is named by an object. A key that is one, as a parameter in the state of an optimizer, goes by its
        position."""
        keys: list[tuple[How, Any]] = []
        step = self
        while step.parent is not None:
            key = step.key if _is_plain(step.key) else step._position()
            if key is None and step.key is not None:
                return None
            keys.append((step.how, key))
            step = step.parent
        return (step.label if step.key is None else (step.label, step.key)), *keys

    def _position(self) -> NthKey | None:
        """Which of a dictionary's keys this one is."""
        if self.how is not How.ITEM or not isinstance(self.holder, dict):
            return None
        return next((NthKey(at) for at, key in enumerate(dict.keys(self.holder)) if key is self.key), None)

    def _entry(self) -> tuple[How, int, Any]:
        # Keys by their values only where nobody can have redefined what is equal.
        key = None if self.how is How.ROOT else self.key
        return self.how, id(self.holder), key if type(key) in (int, str) else id(key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self._entry() == other._entry()

    def __hash__(self) -> int:
        return hash(self._entry())

    def read(self) -> Any:
        """The value here now; raises KeyError, IndexError, AttributeError or ValueError if there is none."""
        return self.read_in(self.holder)

    def read_in(self, holder: Any) -> Any:
        """The value where this step leads from `holder`."""
        match self.how:
            case How.ROOT | How.ARGUMENT:
                return holder
            case How.ITEM:
                if isinstance(holder, dict) and self.key not in holder:
                    raise KeyError(self.key)  # a defaultdict would make one
                return holder[self.key]
            case How.ATTRIBUTE:
                return getattr(holder, self.key)
            case How.SLOT:
                return self.key.__get__(holder)
            case How.CELL:
                return holder.cell_contents
            case How.GRAD:
                return holder.grad

    def read_or(self, default: Any) -> Any:
        """The value here now, or `default` if there is none."""
        try:
            return self.read()
        except (KeyError, IndexError, AttributeError, ValueError):
            return default

    def write(self, value: Any) -> None:
        """Put `value` here."""
        match self.how:
            case How.ITEM:
                self.holder[self.key] = value
            case How.ATTRIBUTE:
                setter_of(self.holder)(self.holder, self.key, value)
            case How.SLOT:
                self.key.__set__(self.holder, value)
            case How.CELL:
                self.holder.cell_contents = value
            case How.GRAD:
                self.holder.grad = value
            case How.ROOT | How.ARGUMENT:
                raise AttributeError(f"{self.label} cannot be assigned")

    @property
    def starts(self) -> Start:
        """What the step starts from on each call.

        Decided when it is first asked, while the program is as it was traced.
        """
        if self._start is None:
            object.__setattr__(self, "_start", self._found_start())
        return self._start or Start.FIXED

    @property
    def is_read_anew(self) -> bool:
        """Whether the step starts from its parent's value of the day, not from an object that must stay the same."""
        return self.starts is not Start.FIXED

    def _found_start(self) -> Start:
        if self.parent is None or self.how is How.ROOT or self.parent.how is How.ROOT:
            return Start.FIXED
        if self.how is How.GRAD or isinstance(self.holder, (list, tuple, deque)):
            return Start.PARENT
        value = self.parent.read_or(None)
        if self.holder is value:
            return Start.PARENT
        is_in_table = self.how is How.ITEM and table_of(value) is self.holder and is_record(value)
        return Start.TABLE if is_in_table else Start.FIXED

    def start_in(self, value: Any) -> Any:
        """What the step starts from where its parent's value is `value`."""
        return (table_of(value) or {}) if self.starts is Start.TABLE else value

    def anew(self) -> Place:
        """The place as it is found now: its step starts from what there is today, where a container was replaced."""
        if self.parent is None or not self.is_read_anew:
            return self
        parent, gone = self.parent.anew(), object()
        value = parent.read_or(gone)
        return replace(self, holder=self.holder if value is gone else self.start_in(value), parent=parent)

    @property
    def steps(self) -> Iterator[Place]:
        """The steps that a call takes to this place, the last one first."""
        step: Place | None = self
        while step is not None and step.how not in (How.ROOT, How.ARGUMENT):
            yield step
            step = step.parent if step.is_read_anew else None

    @property
    def in_tuples(self) -> list[Place]:
        """The steps to this place through tuples, the outermost first: a tuple is assigned where that one is."""
        found: list[Place] = []
        step = self
        while isinstance(step.holder, tuple) and step.parent is not None:
            found.insert(0, step)
            step = step.parent
        return found

    @property
    def slot(self) -> Place:
        """Where what is here is assigned: here, or where the outermost tuple is that this place is in."""
        steps = self.in_tuples
        return steps[0].parent or self if steps else self

    @property
    def may_be_kept(self) -> bool:
        """Whether guards can tell that nothing has changed here: not for gradients, nor for what an argument leads to."""
        return all(
            step.how is not How.GRAD and (step.parent is None or step.parent.how is not How.ARGUMENT)
            for step in self.steps
        )

    def child(self, how: How, holder: Any, key: Any, label: str) -> Place:
        """A place one step further."""
        return Place(how, holder, key, self, label)

    def grad_of(self, tensor: Any) -> Place:
        """The place of the gradient of the tensor here."""
        return self.child(How.GRAD, tensor, None, f"{self}.grad")

    def __str__(self) -> str:
        return self.label


Trail = tuple[Any, ...]


def root(value: Any, label: str, *, nth: int = 0) -> Place:
    """A place that is a constant of the program; the `nth` with this label."""
    return Place(How.ROOT, value, nth or None, None, label)


def _is_plain(key: Any) -> bool:
    return all(map(_is_plain, key)) if type(key) is tuple else type(key) in PLAIN
