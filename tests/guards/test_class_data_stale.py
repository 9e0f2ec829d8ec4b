"""Data of classes that is read by names which no code spells out."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.follows import Story, folded, follows

Tensor = torch.Tensor
NAMES = [f"{name}_of_it" for name in ("gain", "bias")]  # two that no code has


def _made(base: type = object) -> Any:
    return type("Config", (base,), {"gain_of_it": 2.0, "bias_of_it": 3.0})


def _by_table(config: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: folded(x, [config.__dict__[name] for name in NAMES])


def _by_items(config: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: folded(x, [value for name, value in config.__dict__.items() if name[-3:] == "_it"])


def _by_order(config: Any) -> Callable[[Tensor], Tensor]:
    def program(x: Tensor) -> Tensor:
        for base in type(value).__mro__:
            x = folded(x, [entry for name, entry in base.__dict__.items() if name[-3:] == "_it"])
        return x

    value = type("Derived", (config,), {})()
    return program


def _by_getter(config: Any) -> Callable[[Tensor], Tensor]:
    get = operator.attrgetter(*NAMES)
    return lambda x: folded(x, get(config))


def _by_getter_made_inside(config: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: folded(x, operator.attrgetter(*NAMES)(config))


def _by_reduce(config: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: folded(x, [functools.reduce(getattr, [name], config) for name in NAMES])


def _by_map(config: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: folded(x, map(getattr, [config, config], NAMES))


def _by_partial(config: Any) -> Callable[[Tensor], Tensor]:
    get = functools.partial(getattr, config)
    return lambda x: folded(x, [get(name) for name in NAMES])


def _by_another_name(config: Any) -> Callable[[Tensor], Tensor]:
    get = getattr
    return lambda x: folded(x, [get(config, name) for name in NAMES])


def _by_inspection(config: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: folded(x, [inspect.getattr_static(config, name) for name in NAMES])


def _by_format(config: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: folded(x, "{0.gain_of_it!s} {0.bias_of_it}".format(config).split())  # noqa: UP032


WAYS = [
    *(
        _by_table,
        _by_items,
        _by_order,
        _by_getter,
        _by_getter_made_inside,
        _by_partial,
        _by_another_name,
        _by_reduce,
        _by_map,
    ),
    *(_by_inspection, _by_format),
]


@pytest.mark.parametrize("way", WAYS)
@follows()
def test_data_of_a_class_by_names_that_are_computed(way: Callable[[Any], Callable[[Tensor], Tensor]]) -> Story:
    config = _made()
    yield way(config)
    config.bias_of_it = 5.0
    yield
    config.gain_of_it = 7.0
    yield


@follows(recordings=1)
def test_data_of_a_class_that_no_code_names_is_no_guard() -> Story:
    config = _made()
    config.scale = 2.0
    yield lambda x: x * config.scale - 1
    config.bias_of_it = 5.0
    yield


@follows()
def test_data_of_a_class_whose_name_looks_like_that_of_an_abstract_one() -> Story:
    config = type("Config", (), {"_abc_scale": 2.0})
    yield lambda x: x * config._abc_scale - 1  # type: ignore[attr-defined]
    config._abc_scale = 5.0  # type: ignore[attr-defined]
    yield


@follows()
def test_an_attribute_of_an_object_that_hides_one_of_the_class_with_two_underscores() -> Story:
    value: Any = type("Value", (), {"__scale__": 2.0})()
    yield lambda x: x * value.__scale__ - 1
    value.__scale__ = 5.0
    yield


@follows()
def test_an_attribute_of_a_property_of_a_class_of_ones_own() -> Story:
    class Kept(property):
        scale = 0.0

    class Value:
        @Kept
        def doubled(self) -> float:
            return 2.0

    held: Any = Value.doubled
    held.scale = 2.0
    yield lambda x: x * Value.doubled.scale - Value().doubled
    held.scale = 5.0
    yield


@follows()
def test_data_of_a_class_that_a_property_of_its_metaclass_hides_from_all_but_instances() -> Story:
    class Meta(type):
        @property
        def sizes(cls) -> list[float]:
            return [cls._size]  # type: ignore[attr-defined, no-any-return]

    class Sine(metaclass=Meta):
        _size = 2.0
        sizes = 5.0  # type: ignore[assignment]

    value = Sine()
    yield lambda x: x * value.sizes - Sine.sizes[0]
    Sine._size = 3.0
    yield
