"""Programs that change parts of objects, classes and functions: the class of an object is a slot, the rest is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from support.follows import Story, follows

Tensor = torch.Tensor


def _of_two_classes(base: type) -> Any:
    """An object whose calls make it one of the other class."""

    class Cold(base):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            self.__class__ = Hot
            return x * 2 - 1

    class Hot(Cold):
        def forward(self, x: Tensor) -> Tensor:
            self.__class__ = Cold
            return x * 3 - 5

    return Cold()


@pytest.mark.parametrize("base", [object, nn.Module, dict])
def test_the_class_of_an_object_is_assigned_by_each_replay(base: type) -> None:
    @follows(calls=8, recordings=2)
    def story() -> Story:
        state = _of_two_classes(base)
        yield lambda x: state.forward(x), lambda: type(state).__name__

    story()


@follows(calls=6, refused="result")
def test_the_class_of_an_object_is_put_back_after_a_refused_trace() -> Story:
    state = _of_two_classes(object)
    yield lambda x: state.forward(x).nonzero(), lambda: type(state).__name__


@follows(calls=4)
def test_a_class_that_a_user_assigns_meanwhile_is_followed() -> Story:
    class Two:
        by = 2

    class Three(Two):
        by = 3

    holder = Two()

    def program(x: Tensor) -> Tensor:
        y = x * holder.by - 1
        holder.__class__ = Two
        return y

    yield program, lambda: type(holder).__name__
    holder.__class__ = Three
    yield


def _method(cls: Any) -> Callable[[], Any]:
    first, second = lambda self: 2, lambda self: 3
    cls.f = first

    def change() -> Any:
        cls.f = second if cls().f() == 2 else first
        return cls().f()

    return change


def _property(cls: Any) -> Callable[[], Any]:
    first, second = property(lambda self: 2), property(lambda self: 3)
    cls.f = first

    def change() -> Any:
        cls.f = second if cls().f == 2 else first
        return cls().f

    return change


def _static_method(cls: Any) -> Callable[[], Any]:
    first, second = staticmethod(lambda: 2), staticmethod(lambda: 3)
    cls.f = first

    def change() -> Any:
        cls.f = second if cls.f() == 2 else first
        return cls.f()

    return change


def _bases(cls: Any) -> Callable[[], Any]:
    class Two:
        by = 2

    class Three:
        by = 3

    class Derived(Two): ...

    def change() -> Any:
        Derived.__bases__ = (Three,) if Derived.by == 2 else (Two,)
        return Derived.by

    return change


def _part(name: str, *values: Any) -> Callable[[Any], Callable[[], Any]]:
    def make(_: Any) -> Callable[[], Any]:
        def helper(a: int = 2, *, b: int = 0) -> int:
            return a + b

        def change() -> Any:
            setattr(helper, name, values[0] if getattr(helper, name) == values[1] else values[1])
            return helper()

        return change

    return make


CHANGES: dict[str, tuple[Callable[[Any], Callable[[], Any]], str]] = {
    "method": (_method, ".f"),
    "property": (_property, ".f"),
    "static method": (_static_method, ".f"),
    "bases": (_bases, ".__bases__"),
    "defaults": (_part("__defaults__", (2,), (3,)), ".__defaults__"),
    "keyword defaults": (_part("__kwdefaults__", {"b": 1}, {"b": 2}), ".__kwdefaults__"),
    "code": (_part("__code__", (lambda a=2, *, b=0: 7).__code__, (lambda a=2, *, b=0: 8).__code__), ".__code__"),
    "name": (_part("__name__", "one", "two"), ".__name__"),
    "docstring": (_part("__doc__", "one", "two"), ".__doc__"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_part_that_a_program_assigns_is_put_back_and_refused(what: str) -> None:
    make, label = CHANGES[what]

    @follows(calls=6, refused=label)
    def story() -> Story:
        class Made: ...

        change = make(Made)
        told: list[Any] = []

        def program(x: Tensor) -> Tensor:
            return x * change() - 1

        yield program, lambda: told

    story()
