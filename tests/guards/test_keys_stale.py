"""Arguments that are equal but not the same: each has a recording of its own, or the call is refused."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import fractions
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from support import assert_same, jit

Tensor = torch.Tensor


class Named:
    """Equal by its name, whatever its scale."""

    def __init__(self, name: str, scale: float) -> None:
        self.name, self.scale = name, scale

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


@dataclasses.dataclass(frozen=True)
class Options:
    """A field that does not count among those compared."""

    name: str
    scale: Any = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: Any


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Any
    name: str = "outer"


class Pair(NamedTuple):
    scale: Any
    name: str = "pair"


class Level(enum.IntEnum):
    ONE = 1
    TWO = 2


class Text(str):
    scale = 2.0


def _text(scale: float) -> Text:
    made = Text("same")
    made.scale = scale
    return made


def _scale(value: Any) -> Any:
    """The number in a value, and what kind it is."""
    while not isinstance(value, (int, float, complex, np.generic, fractions.Fraction, decimal.Decimal)):
        if isinstance(value, (tuple, list)) and not hasattr(value, "scale"):
            value = value[0]
        elif isinstance(value, dict):
            value = next(iter(value.values()))
        else:
            value = value.inner if hasattr(value, "inner") else value.scale
    return value


def program(x: Tensor, value: Any) -> Tensor:
    scale = _scale(value)
    sign = math.copysign(1.0, scale.real if isinstance(scale, complex) else scale)
    kind = ("bool", "int", "float", "complex").index(type(scale).__name__) if type(scale) in KINDS else 7
    size = abs(scale) if isinstance(scale, complex) else float(scale)
    return x * size - kind + sign * 11


KINDS = (bool, int, float, complex)
EQUAL: dict[str, tuple[Any, Any]] = {
    "True and 1": (True, 1),
    "False and 0": (False, 0),
    "1 and 1.0": (1, 1.0),
    "1.0 and 1j less": (1.0, 1 + 0j),
    "zeros": (0.0, -0.0),
    "complex zeros": (0j, complex(-0.0, 0.0)),
    "zeros of NumPy": (np.float64(0.0), np.float64(-0.0)),
    "short zeros of NumPy": (np.float32(0.0), np.float32(-0.0)),
    "half zeros of NumPy": (np.float16(0.0), np.float16(-0.0)),
    "number and NumPy's": (1.0, np.float64(1.0)),
    "kinds of NumPy": (np.float32(1.0), np.float64(1.0)),
    "number and fraction": (1, fractions.Fraction(1)),
    "number and decimal": (1, decimal.Decimal(1)),
    "zeros of decimal": (decimal.Decimal("0"), decimal.Decimal("-0")),
    "number and member": (1, Level.ONE),
    "equality of its own": (Named("a", 2.0), Named("a", 3.0)),
    "field not compared": (Options("a", 2.0), Options("a", 3.0)),
    "text with more": (_text(2.0), _text(3.0)),
}
AROUND: dict[str, Callable[[Any], Any]] = {
    "itself": lambda value: value,
    "tuple": lambda value: (value,),
    "list": lambda value: [value],
    "dict": lambda value: {"a": value},
    "namedtuple": lambda value: Pair(value),
    "frozen dataclass": lambda value: Frozen(value),
    "frozen dataclass in a frozen dataclass": lambda value: Outer(Frozen(value)),
    "tuple in a frozen dataclass": lambda value: Frozen((value,)),
    "tuple in a tuple": lambda value: ((value,), "b"),
    "field not compared": lambda value: Options("a", value),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize(("first", "second"), EQUAL.values(), ids=EQUAL)
def test_arguments_that_are_equal_but_not_the_same(first: Any, second: Any, around: Callable[[Any], Any]) -> None:
    jitted = jit(program, on_refusal="eager")
    for value in (first, second, first):
        for _ in range(3):
            x = torch.randn(3)
            assert_same(jitted(x, around(value)), program(x, around(value)))
    made = jitted.statistics()
    assert made.refusals or made.replays >= 4, jitted.explain()


@pytest.mark.parametrize("around", [AROUND["itself"], AROUND["tuple"]], ids=["itself", "tuple"])
@pytest.mark.parametrize(("first", "second"), EQUAL.values(), ids=EQUAL)
def test_keywords_that_are_equal_but_not_the_same(first: Any, second: Any, around: Callable[[Any], Any]) -> None:
    jitted = jit(program, on_refusal="eager")
    for call in range(12):
        x, value = torch.randn(3), around((first, second)[call % 2])
        assert_same(jitted(x, value=value), program(x, value=value))


KEYS: dict[str, tuple[Any, Any]] = {
    "True and 1": ({True: 2.0}, {1: 2.0}),
    "1 and 1.0": ({1: 2.0}, {1.0: 2.0}),
    "zeros": ({0.0: 2.0}, {-0.0: 2.0}),
    "equality of its own": ({Named("a", 2.0): 2.0}, {Named("a", 3.0): 2.0}),
    "order": ({"a": 2.0, "b": 3.0}, {"b": 3.0, "a": 2.0}),
}


@pytest.mark.parametrize(("first", "second"), KEYS.values(), ids=KEYS)
def test_dicts_whose_keys_are_equal_but_not_the_same(first: Any, second: Any) -> None:
    def use(x: Tensor, table: dict[Any, Any]) -> Tensor:
        for key, value in table.items():
            scale = key.scale if isinstance(key, Named) else len(repr(key))
            x = x * value - scale - (ord(key) if isinstance(key, str) else 0)
        return x

    jitted = jit(use, on_refusal="eager")
    for table in (first, second, first):
        for _ in range(3):
            x = torch.randn(3)
            assert_same(jitted(x, table), use(x, table))


def test_an_argument_that_is_changed_and_passed_again() -> None:
    class Settings:
        scale = 2.0

    settings = Settings()
    jitted = jit(lambda x, s: x * s.scale - 1)
    for scale in (2.0, 3.0, 2.0):
        settings.scale = scale
        for _ in range(4):
            x = torch.randn(3)
            assert_same(jitted(x, settings), x * scale - 1)
    assert jitted.statistics().recordings == 2


def test_another_argument_of_the_same_kind() -> None:
    jitted = jit(lambda x, s: x * s.scale - len(s.name), on_refusal="eager")
    for scale in (2.0, 3.0, 2.0):
        for _ in range(4):
            x = torch.randn(3)
            assert_same(jitted(x, Named("a", scale)), x * scale - 1)


def test_a_list_in_an_argument_that_is_changed_and_passed_again() -> None:
    scales = [2.0, 1.0]
    options = Frozen(scales)
    jitted = jit(lambda x, o: x * o.scale[0] - o.scale[-1], on_refusal="eager")
    for change in (lambda: None, lambda: scales.append(4.0), lambda: scales.insert(0, 5.0)):
        change()
        for _ in range(4):
            x = torch.randn(3)
            assert_same(jitted(x, options), x * scales[0] - scales[-1])


@pytest.mark.parametrize("value", [math.nan, np.float64("nan"), (math.nan,), Frozen(math.nan)], ids=repr)
def test_a_nan_has_one_recording_or_none(value: Any) -> None:
    jitted = jit(lambda x, v: x * 2 - 1, on_refusal="eager")
    for _ in range(20):
        x = torch.randn(3)
        assert_same(jitted(x, value), x * 2 - 1)
    assert jitted.statistics().recordings <= 1


def test_a_default_and_the_same_value_given() -> None:
    def scaled(x: Tensor, scale: Any = 1) -> Tensor:
        return x * scale - (2 if isinstance(scale, bool) else 3)

    jitted = jit(scaled)
    for args in ((), (1,), (True,), (1.0,), ()):
        for _ in range(3):
            x = torch.ones(3, dtype=torch.int64)
            assert_same(jitted(x, *args), scaled(x, *args))


def test_a_value_watched_in_the_world_that_is_equal_but_not_the_same() -> None:
    holder = Named("a", 2.0)
    current: Any = holder
    jitted = jit(lambda x: x * current.scale - len(current.name))
    for current in (holder, Named("a", 3.0), holder):
        for _ in range(4):
            x = torch.randn(3)
            assert_same(jitted(x), x * current.scale - 1)
    assert jitted.statistics().refusals == 0


IN_THE_WORLD = {name: AROUND[name] for name in ("itself", "tuple", "dict", "frozen dataclass in a frozen dataclass")}


@pytest.mark.parametrize(("first", "second"), EQUAL.values(), ids=EQUAL)
@pytest.mark.parametrize("around", IN_THE_WORLD.values(), ids=IN_THE_WORLD)
def test_values_in_the_world_that_are_equal_but_not_the_same(
    first: Any, second: Any, around: Callable[[Any], Any]
) -> None:
    current = around(first)
    jitted = jit(lambda x: program(x, current))
    for value in (first, second, first):
        current = around(value)
        for _ in range(4):
            x = torch.randn(3)
            assert_same(jitted(x), program(x, current))
    assert jitted.statistics().refusals == 0
    assert jitted.statistics().replays >= 6
