"""Which objects are records, and what they hold."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from treeplay.values.records import held_in_record, is_record

T = TypeVar("T")


@dataclass
class Plain:
    a: int = 1
    b: int = 2


@dataclass(frozen=True, slots=True)
class Slotted:
    a: int = 1
    b: int = 2


@dataclass
class Both(Generic[T]):
    a: int = 1


@dataclass
class Watches:
    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


@dataclass
class Dies:
    def __del__(self) -> None: ...


@dataclass(repr=False)
class Nameless:
    a: int = 1


@dataclass
class InC(collections.deque):  # type: ignore[type-arg]
    a: int = 1


@dataclass
class InDict(dict):  # type: ignore[type-arg]
    a: int = 1


@pytest.mark.parametrize("kind", [Plain, Slotted, Both])
def test_a_dataclass_is_a_record(kind: Any) -> None:
    assert is_record(kind())


@pytest.mark.parametrize("kind", [Watches, Dies, Nameless, InC, InDict, object, collections.OrderedDict])
def test_what_is_more_than_its_attributes_is_none(kind: Any) -> None:
    assert not is_record(kind())


def test_a_class_is_none() -> None:
    assert not is_record(Plain)


def test_what_a_record_holds_comes_in_order() -> None:
    record = Plain(3, 4)
    record.c = 5  # type: ignore[attr-defined]
    assert [*held_in_record(record)] == [("a", 3), ("b", 4), ("c", 5)]
    slotted = Slotted()
    object.__delattr__(slotted, "a")
    assert [*held_in_record(slotted)] == [("b", 2)]
