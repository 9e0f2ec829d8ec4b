"""Attributes of objects that are something else besides: memory, exceptions, what a proxy stands for, scripted modules."""

from __future__ import annotations

import array
import ctypes
import importlib
import io
import itertools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support.follows import Story, follows

Tensor = torch.Tensor


class Info(np.ndarray):
    pass


class Raw(bytearray):
    pass


class Words(array.array):  # type: ignore[type-arg]
    pass


class Record(ctypes.Structure):
    _fields_ = (("v", ctypes.c_int),)


class Text(io.StringIO):
    pass


class InSlots(bytearray):
    __slots__ = ("scale",)


MEMORIES: dict[str, Callable[[], Any]] = {
    "array of NumPy": lambda: np.zeros(2).view(Info),
    "bytearray": lambda: Raw(b"a"),
    "array": lambda: Words("d", [1.0]),
    "structure": Record,
    "text": lambda: Text("a"),
    "slots": lambda: InSlots(b"a"),
}


@pytest.mark.parametrize("make", MEMORIES.values(), ids=MEMORIES)
@follows()
def test_an_attribute_of_memory_that_is_read(make: Callable[[], Any]) -> Story:
    value = make()
    value.scale = 2.0
    yield lambda x: x * value.scale - 1
    value.scale = 5.0
    yield


@pytest.mark.parametrize("make", MEMORIES.values(), ids=MEMORIES)
@follows(calls=6, recordings=2)
def test_an_attribute_of_memory_that_is_written(make: Callable[[], Any]) -> Story:
    def program(x: Tensor) -> Tensor:
        value.scale = not value.scale
        return x * 2 - 1

    value = make()
    value.scale = False
    yield program, lambda: value.scale


class OfMine(ValueError):
    pass


def _set_cause(error: Exception, value: float) -> None:
    error.__cause__ = KeyError(value)


EXCEPTIONS: dict[str, tuple[Callable[[], Any], Callable[[Any], float], Callable[[Any, float], None]]] = {
    "args": (lambda: ValueError(2.0), lambda e: e.args[0], lambda e, v: setattr(e, "args", (v,))),
    "args of mine": (lambda: OfMine(2.0), lambda e: e.args[0], lambda e, v: setattr(e, "args", (v,))),
    "errno": (lambda: OSError(2, "x"), lambda e: e.errno, lambda e, v: setattr(e, "errno", v)),
    "value": (lambda: StopIteration(2.0), lambda e: e.value, lambda e, v: setattr(e, "value", v)),
    "attribute": (OfMine, lambda e: getattr(e, "scale", 2.0), lambda e, v: setattr(e, "scale", v)),
    "cause": (lambda: OfMine(), lambda e: e.__cause__.args[0] if e.__cause__ else 2.0, _set_cause),
}


@pytest.mark.parametrize(("make", "read", "write"), EXCEPTIONS.values(), ids=EXCEPTIONS)
@follows()
def test_what_an_exception_keeps(make: Any, read: Any, write: Any) -> Story:
    error = make()
    yield lambda x: x * read(error) - 1
    write(error, 5.0)
    yield
    write(error, 7.0)
    yield


@pytest.mark.parametrize("what", ["args", "errno", "value", "attribute"])
@follows(calls=6, recordings=2)
def test_what_a_program_keeps_in_an_exception(what: str) -> Story:
    make, read, write = EXCEPTIONS[what]

    def program(x: Tensor) -> Tensor:
        write(error, not read(error))
        return x * 2 - 1

    error = make()
    write(error, False)
    yield program, lambda: read(error)


class Numbers(list[float]):
    pass


@follows()
def test_an_item_behind_a_weak_proxy() -> Story:
    numbers = Numbers([2.0])
    proxy = weakref.proxy(numbers)
    yield lambda x: x * proxy[0] - 1
    numbers[0] = 5.0
    yield


@follows(recordings=1)
def test_an_iterator_in_a_namespace_from_which_nothing_is_taken() -> Story:
    held = types.SimpleNamespace(numbers_of_calls=itertools.count(), scale=2.0)
    yield lambda x: x * held.scale - 1


@follows(refused="is a count")
def test_an_iterator_in_a_namespace_from_which_an_item_is_taken() -> Story:
    held = types.SimpleNamespace(numbers_of_calls=itertools.count(), scale=2.0)
    yield lambda x: x * held.scale - next(held.numbers_of_calls)


@follows(worlds=1)
def test_a_module_that_is_imported_by_a_computed_name() -> Story:
    def named(scale: float) -> types.ModuleType:
        module = types.ModuleType("a_module_of_a_test")
        vars(module)["scale"] = scale
        return module

    parts = ["a", "module", "of", "a", "test"]
    sys.modules["a_module_of_a_test"] = named(2.0)
    try:
        yield lambda x: x * importlib.import_module("_".join(parts)).scale - 1
        sys.modules["a_module_of_a_test"] = named(5.0)
        yield
    finally:
        del sys.modules["a_module_of_a_test"]


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.shifts = [1.0, 3.0]

    def forward(self, x: Tensor) -> Tensor:
        for shift in self.shifts:
            x = x * self.scale - shift
        return x * 2 if self.training else x


@pytest.mark.parametrize("is_inside", [False, True])
@follows()
def test_attributes_of_a_scripted_module(is_inside: bool) -> Story:
    scripted: Any = torch.jit.script(Scaling())
    yield nn.Sequential(scripted, nn.ReLU()) if is_inside else lambda x: scripted(x)
    scripted.scale = 5.0
    yield
    scripted.shifts = [3.0, 1.0]
    yield
    scripted.eval()
    yield


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.seen = [0]

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.seen.append(self.count)
        return x * self.count - len(self.seen)


@follows(refused="the program")
def test_a_scripted_module_that_counts() -> Story:
    scripted: Any = torch.jit.script(Counting())
    yield lambda x: scripted(x), lambda: (scripted.count, scripted.seen)


@torch.jit.script
def doubled(x: Tensor) -> Tensor:
    return x * 2 - 1


@follows(recordings=1)
def test_a_scripted_function_has_no_state() -> Story:
    yield lambda x: doubled(x) * 3
