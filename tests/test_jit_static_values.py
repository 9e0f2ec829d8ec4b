"""Static arguments and values in reach that are equal and not the same: none is taken for another."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch

from support import assert_same, jit


class Level(enum.IntEnum):
    LOW = 1


@dataclass(frozen=True)
class Config:
    scale: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "derived", 1)  # not only its fields: it is a leaf, and not taken apart


class Agreeable:
    """Says that it is equal to everything."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


def sign(value: Any) -> float:
    return -1.0 if str(value).startswith("-") else 1.0


def kind(value: Any) -> float:
    kinds = (bool, Level, int, numpy.float64, float, numpy.float32, Fraction, Decimal)
    return float(next(index for index, cls in enumerate(kinds) if isinstance(value, cls)))


def digits(value: Any) -> float:
    return float(len(str(value)))


PAIRS: dict[str, tuple[Any, Any, Callable[[Any], float]]] = {
    "zeros": (0.0, -0.0, sign),
    "NumPy's zeros": (numpy.float64(0.0), numpy.float64(-0.0), sign),
    "NumPy's types": (numpy.float64(1.0), numpy.float32(1.0), kind),
    "NumPy's and Python's": (1.0, numpy.float64(1.0), kind),
    "bool and int": (True, 1, kind),
    "int and float": (1, 1.0, kind),
    "a member and its value": (Level.LOW, 1, kind),
    "a fraction and an int": (Fraction(1), 1, kind),
    "decimals": (Decimal("1.0"), Decimal("1.00"), digits),
    "sets": (frozenset([True]), frozenset([1]), lambda value: kind(next(iter(value)))),
    "configurations": (Config(1), Config(True), lambda value: kind(value.scale)),
    "zeros in configurations": (Config((0.0,)), Config((-0.0,)), lambda value: sign(value.scale[0])),
    "agreeable objects": (Agreeable(1.0), Agreeable(2.0), lambda value: value.scale),
}


@pytest.mark.parametrize("what", PAIRS)
def test_equal_arguments_do_not_share_a_recording(what: str) -> None:
    one, other, read = PAIRS[what]
    jitted, x = jit(lambda x, value: x * 3 - read(value)), torch.randn(2)
    for value in (one, other) * 4:
        assert_same(jitted(x, value), x * 3 - read(value))
    assert jitted.statistics().recordings == 2


@pytest.mark.parametrize("what", ["zeros", "NumPy's zeros", "NumPy's and Python's", "bool and int", "int and float"])
def test_equal_attributes_do_not_share_a_recording(what: str) -> None:
    one, other, read = PAIRS[what]

    class Program:
        value = one

        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x * 3 - read(self.value)

    program, x = Program(), torch.randn(2)
    jitted = jit(program.run)
    for value in (one, one, one, other, other, other, one, other):
        program.value = value
        assert_same(jitted(x), x * 3 - read(value))
    assert jitted.statistics().recordings == 2


def test_values_made_anew_share_a_recording() -> None:
    jitted, x = jit(lambda x, *values: x * float(values[0]) - len(values)), torch.randn(2)
    for _ in range(5):
        values = numpy.float64(0.25), Decimal("1.0"), Fraction(1, 3), float("nan"), frozenset([1.5]), Config((1, -0.0))
        assert_same(jitted(x, *values), x * 0.25 - 6)
    assert jitted.statistics().replays == 4


def test_keys_of_dictionaries_count_with_their_types() -> None:
    jitted, x = jit(lambda given: given[1] * 3 - kind(next(iter(given)))), torch.randn(2)
    for key in (1, True, 1.0, numpy.float64(1)) * 3:
        assert_same(jitted({key: x}), x * 3 - kind(key))
    assert jitted.statistics().recordings == 4
