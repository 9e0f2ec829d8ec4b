"""Sameness: exact for immutable values, identity for all others, and nobody's `__eq__` is asked."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treeplay.values.same import exact_key, is_same, is_value

Decimal, Fraction = decimal.Decimal, fractions.Fraction
Point = collections.namedtuple("Point", ["x", "y"])


class Color(enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Sly:
    """Equal to everything, as it says."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("asked")

    def __hash__(self) -> int:
        raise AssertionError("asked")


class Somebody(Sly):
    def method(self) -> None:
        pass


SOMEBODY, HELD = Somebody(), [1]


class MyInt(int):
    pass


class MyPoint(Point):
    """Not a plain tuple any more: it can hold more than its items."""


@dataclass(frozen=True)
class Box:
    inside: Any
    hidden: Any = field(default=0, compare=False)

    @functools.cached_property
    def twice(self) -> Any:
        return self.inside * 2


@dataclass(frozen=True, slots=True)
class Narrow:
    inside: Any


@dataclass(frozen=True)
class Generous:
    inside: Any

    def __eq__(self, other: object) -> bool:
        raise AssertionError("asked")

    def __hash__(self) -> int:
        raise AssertionError("asked")


class Beyond(Box):
    """No dataclass of its own: what it adds is not known."""


@dataclass
class Open:
    inside: Any


UTC, ONE = datetime.UTC, datetime.timezone(datetime.timedelta(hours=1))


def moment(hour: int, zone: Any = None, fold: int = 0) -> datetime.datetime:
    return datetime.datetime(2024, 5, 6, hour, tzinfo=zone, fold=fold)


MAKERS = [
    lambda: 10**30,
    lambda: float("1.5"),
    lambda: float("nan"),
    lambda: complex(1.0, -0.0),
    lambda: "".join(["a", "bc"]),
    lambda: bytes([1, 2, 255]),
    lambda: (1, (2.5, "ab" * 3), None),
    lambda: Point(1, (float("nan"),)),
    lambda: frozenset([3, 1000]),
    lambda: slice(1, 2000, None),
    lambda: range(3, 4000, 2),
    lambda: Fraction(3, 1007),
    lambda: Decimal("1.50"),
    lambda: Decimal("NaN"),
    lambda: moment(3, ONE),
    lambda: datetime.time(3, 4, 5, tzinfo=UTC),
    lambda: datetime.date(2024, 5, 6),
    lambda: datetime.timedelta(days=400),
    lambda: datetime.timezone(datetime.timedelta(minutes=7)),
    lambda: torch.device("cpu", 0),
    lambda: torch.Size([2, 3000]),
    lambda: torch.float64,
    lambda: torch.channels_last,
    lambda: Color.RED,
    lambda: numpy.float32(2.5),
    lambda: numpy.float64("nan"),
    lambda: numpy.int64(7000),
    lambda: numpy.str_("ab"),
    lambda: numpy.datetime64("2024-05-06", "D"),
    lambda: Box((1, 2.5)),
    lambda: Narrow("ab" * 2),
    lambda: Generous(10**20),
    lambda: SOMEBODY.method,
    lambda: HELD.append,
    lambda: HELD.__len__,
]


@pytest.mark.parametrize("make", MAKERS)
def test_two_of_one_value_are_the_same(make: Any) -> None:
    one, other = make(), make()
    assert is_same(one, other) and exact_key(one) == exact_key(other)
    assert hash(exact_key(one)) == hash(exact_key(other))


DIFFERENT = [
    (1, True),
    (1, 1.0),
    (0, False),
    (1.0, 1 + 0j),
    (0.0, -0.0),
    (0j, complex(0.0, -0.0)),
    (0j, complex(-0.0, 0.0)),
    ("a", b"a"),
    ((1,), (True,)),
    ((0.0,), (-0.0,)),
    ((1,), [1]),
    ((1, 2), (1, 2, 3)),
    ((1, 2), Point(1, 2)),
    ((1, 2), torch.Size([1, 2])),
    (Point(1, 2), Point(1, 2.0)),
    (MyPoint(1, 2), MyPoint(1, 2)),
    (frozenset([1]), frozenset([1.0])),
    (frozenset([1]), frozenset([1, 2])),
    (slice(0, 1), slice(False, True)),
    (range(0), range(1, 1)),
    (range(0, 3, 2), range(0, 4, 2)),
    (Fraction(1), 1),
    (Decimal("1.0"), Decimal("1.00")),
    (Decimal("0"), Decimal("-0")),
    (moment(3, UTC), moment(4, ONE)),
    (moment(3), moment(3, UTC)),
    (moment(3), moment(3, fold=1)),
    (datetime.timezone(datetime.timedelta(0)), datetime.timezone(datetime.timedelta(0), "X")),
    (torch.device("cpu"), torch.device("cpu", 0)),
    (torch.float32, torch.float64),
    (Color.RED, Color.BLUE),
    (Level.LOW, 1),
    (numpy.float64(0.0), numpy.float64(-0.0)),
    (numpy.float64(1), 1.0),
    (numpy.float32(1), numpy.float64(1)),
    (numpy.int32(1), numpy.int64(1)),
    (numpy.bool_(True), True),
    (numpy.datetime64("2024-01-01", "D"), numpy.datetime64("2024-01-01", "s")),
    (Box(1), Box(True)),
    (Box(1, hidden=1), Box(1, hidden=2)),
    (Box(1), Beyond(1)),
    (Beyond(1), Beyond(1)),
    (Narrow(0.0), Narrow(-0.0)),
    (Generous(1), Generous(2)),
    (Open(1), Open(1)),
    (Sly(), Sly()),
    (Box(Sly()), Box(Sly())),
    (MyInt(3), MyInt(3)),
    (MyInt(3), 3),
    ([1], [1]),
    ({1}, {1}),
    ({1: 2}, {1: 2}),
    (([1],), ([1],)),
    (numpy.ones(2), numpy.ones(2)),
    (torch.ones(2), torch.ones(2)),
    (numpy.zeros(1, "i4,i4")[0], numpy.zeros(1, "i4,i4")[0]),
    (int, bool),
    (lambda: 1, lambda: 1),
    (SOMEBODY.method, Somebody().method),
    (HELD.append, [1].append),
    (HELD.append, HELD.pop),
    (HELD.__len__, [1].__len__),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_is_equal_and_not_the_same(one: Any, other: Any) -> None:
    assert not is_same(one, other) and not is_same(other, one)
    assert exact_key(one) != exact_key(other)
    hash(exact_key(one))


@pytest.mark.parametrize("value", [*(make() for make in MAKERS), *(pair[0] for pair in DIFFERENT)])
def test_everything_is_the_same_as_itself(value: Any) -> None:
    assert is_same(value, value) and exact_key(value) == exact_key(value)


def test_values_are_told_from_objects() -> None:
    assert all(is_value(value) for value in (1, -0.0, "a", None, (1, [2]), numpy.float32(1), Box(1), slice(1)))
    assert not any(
        is_value(value) for value in ([1], Sly(), Color.RED, Open(1), MyInt(3), numpy.ones(2), torch.ones(2))
    )


def test_names_of_one_enum_member_are_the_same() -> None:
    assert is_same(Color.RED, Color.CRIMSON)


def test_a_list_in_a_tuple_is_the_same_as_itself() -> None:
    inside = [1]
    assert is_same((inside, 1), (inside, 1))
    assert exact_key((inside,)) == exact_key((inside,))


def test_cached_results_of_a_frozen_dataclass_do_not_count_and_other_additions_do() -> None:
    one, other = Box(3), Box(3)
    assert one.twice == 6 and is_same(one, other)
    object.__setattr__(one, "more", 1)
    assert not is_same(one, other)
    object.__setattr__(other, "more", 1)
    assert is_same(one, other)


def test_keys_keep_what_they_stand_for() -> None:
    keys = {exact_key([index]) for index in range(100)}  # a freed list's memory would be taken by the next
    assert len(keys) == 100


NUMBERS = st.one_of(st.integers(), st.booleans(), st.floats(), st.complex_numbers())


@given(NUMBERS, NUMBERS)
def test_numbers_are_the_same_if_nothing_tells_them_apart(one: Any, other: Any) -> None:
    def shown(value: Any) -> Any:
        signs = [math.copysign(1, part) for part in (value.real, value.imag)] if isinstance(value, complex) else []
        return type(value), repr(value), math.copysign(1, value) if isinstance(value, float) else signs

    assert is_same(one, other) == (exact_key(one) == exact_key(other))
    if is_same(one, other):
        assert shown(one) == shown(other)
    elif one == one and other == other and not isinstance(one, complex):
        assert shown(one) != shown(other)
