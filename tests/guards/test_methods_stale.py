"""Methods, special methods, descriptors and classes that are replaced or altered between calls."""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from support import assert_same, jit
from support.follows import Story, follows
from support.installed import FILE

Tensor = torch.Tensor


def _classes() -> tuple[Any, Any]:
    """A base class with a method of every kind, and a class that inherits them; new ones in every world."""

    class Base:
        factor = 2.0

        def __init__(self) -> None:
            self.shift = 1.0

        def plain(self, x: Tensor) -> Tensor:
            return x * self.factor - self.shift

        @classmethod
        def of_class(cls, x: Tensor) -> Tensor:
            return x * cls.factor - 1

        @staticmethod
        def static(x: Tensor) -> Tensor:
            return x * 2 - 1

        @property
        def a_property(self) -> float:
            return self.factor + self.shift

    class Heir(Base):
        def through_super(self, x: Tensor) -> Tensor:
            return super().plain(x) * 2 - 1

        def through_the_class(self, x: Tensor) -> Tensor:
            return Base.plain(self, x) * 2 - 1

    return Base, Heir


CHANGES: dict[str, tuple[Callable[[Any, Tensor], Tensor], Callable[[Any, Any, Any], Any]]] = {
    "on an instance": (
        lambda o, x: o.plain(x),
        lambda base, heir, o: vars(o).update(plain=lambda x: x - 5),
    ),
    "on an instance, bound": (
        lambda o, x: o.plain(x),
        lambda base, heir, o: vars(o).update(plain=types.MethodType(lambda self, x: x * self.shift - 5, o)),
    ),
    "on the class": (
        lambda o, x: o.plain(x),
        lambda base, heir, o: setattr(base, "plain", lambda self, x: x - 5 * self.factor),
    ),
    "on a class below": (
        lambda o, x: o.plain(x),
        lambda base, heir, o: setattr(heir, "plain", lambda self, x: x - 5 * self.factor),
    ),
    "static": (lambda o, x: o.static(x), lambda base, heir, o: setattr(base, "static", staticmethod(lambda x: x - 5))),
    "static that becomes a method": (
        lambda o, x: o.static(x),
        lambda base, heir, o: setattr(base, "static", lambda self, x: x - 5 * self.shift),
    ),
    "of the class": (
        lambda o, x: o.of_class(x),
        lambda base, heir, o: setattr(base, "of_class", classmethod(lambda cls, x: x - 5 * cls.factor)),
    ),
    "the number of a class method, below": (
        lambda o, x: o.of_class(x),
        lambda base, heir, o: setattr(heir, "factor", 7.0),
    ),
    "property": (
        lambda o, x: x * o.a_property - 1,
        lambda base, heir, o: setattr(base, "a_property", property(lambda self: self.factor * 5)),
    ),
    "property that becomes a value": (
        lambda o, x: x * o.a_property - 1,
        lambda base, heir, o: setattr(base, "a_property", 5.0),
    ),
    "property, below": (
        lambda o, x: x * o.a_property - 1,
        lambda base, heir, o: setattr(heir, "a_property", property(lambda self: self.factor * 5)),
    ),
    "through super": (
        lambda o, x: o.through_super(x),
        lambda base, heir, o: setattr(base, "plain", lambda self, x: x - 5 * self.factor),
    ),
    "a number through super": (lambda o, x: o.through_super(x), lambda base, heir, o: setattr(base, "factor", 5.0)),
    "through the class": (
        lambda o, x: o.through_the_class(x),
        lambda base, heir, o: setattr(base, "plain", lambda self, x: x - 5 * self.factor),
    ),
    "by a name put together": (
        lambda o, x: getattr(o, "pl" + "ain")(x),
        lambda base, heir, o: setattr(base, "plain", lambda self, x: x - 5 * self.factor),
    ),
    "by the dict of the class": (
        lambda o, x: vars(type(o).__mro__[1])["plain"](o, x),
        lambda base, heir, o: setattr(base, "plain", lambda self, x: x - 5 * self.factor),
    ),
    "the class of an instance": (
        lambda o, x: o.plain(x),
        lambda base, heir, o: setattr(o, "__class__", type("Other", (base,), {"factor": 5.0})),
    ),
    "the bases of a class": (
        lambda o, x: o.plain(x),
        lambda base, heir, o: setattr(heir, "__bases__", (type("Other", (base,), {"factor": 5.0}),)),
    ),
    "the code of a method": (
        lambda o, x: o.plain(x),
        lambda base, heir, o: setattr(base.plain, "__code__", (lambda self, x: x - self.factor * 5).__code__),
    ),
    "a property of an instance that hides nothing": (
        lambda o, x: x * o.a_property - 1,
        lambda base, heir, o: vars(o).update(shift=5.0),
    ),
    "isinstance": (
        lambda o, x: x * 2 if type(o).__name__ == "Heir" else x - 1,
        lambda base, heir, o: setattr(o, "__class__", base),
    ),
}


@pytest.mark.parametrize(("use", "change"), CHANGES.values(), ids=CHANGES)
@follows()
def test_a_method_that_is_replaced(
    use: Callable[[Any, Tensor], Tensor], change: Callable[[Any, Any, Any], Any]
) -> Story:
    base, heir = _classes()
    owner = heir()
    yield lambda x: use(owner, x)
    change(base, heir, owner)
    yield


SPECIAL: dict[str, tuple[str, Callable[[Any, Tensor], Tensor], Callable[..., Any]]] = {
    "call": ("__call__", lambda o, x: o(x), lambda self, x: x * self.rate - 1),
    "getitem": ("__getitem__", lambda o, x: x * o["a"] - 1, lambda self, name: self.rate),
    "contains": ("__contains__", lambda o, x: x * 2 if 3.0 in o else x - 1, lambda self, value: self.rate == value),
    "len": ("__len__", lambda o, x: x * len(o) - 1, lambda self: int(self.rate)),
    "bool": ("__bool__", lambda o, x: x * 2 if o else x - 1, lambda self: self.rate > 2.5),
    "iter": ("__iter__", lambda o, x: x * sum(o) - 1, lambda self: iter([self.rate, 1.0])),
    "eq": ("__eq__", lambda o, x: x * 2 if o == 3.0 else x - 1, lambda self, other: self.rate == other),
    "lt": ("__lt__", lambda o, x: x * 2 if o < 3.0 else x - 1, lambda self, other: self.rate < other),
    "add": ("__add__", lambda o, x: x * (o + 1) - 1, lambda self, other: self.rate + other),
    "rmul": ("__rmul__", lambda o, x: x - 2.0 * o, lambda self, other: self.rate * other),
    "float": ("__float__", lambda o, x: x * float(o) - 1, lambda self: self.rate),
    "index": ("__index__", lambda o, x: x * [1, 2, 5, 7, 11][o] - 1, lambda self: int(self.rate)),
    "getattr": ("__getattr__", lambda o, x: x * o.other - 1, lambda self, name: self.rate * len(name)),
    "hash": ("__hash__", lambda o, x: x * (hash(o) % 7) - 1, lambda self: int(self.rate)),
    "str": ("__str__", lambda o, x: x * len(f"{o}") - 1, lambda self: "a" * int(self.rate)),
    "neg": ("__neg__", lambda o, x: x * -o - 1, lambda self: -self.rate),
    "enter": ("__enter__", lambda o, x: _entered(o, x), lambda self: self.rate),
}


def _entered(owner: Any, x: Tensor) -> Tensor:
    with owner as rate:
        return x * rate - 1


@pytest.mark.parametrize(("name", "use", "method"), SPECIAL.values(), ids=SPECIAL)
@follows()
def test_a_special_method(name: str, use: Callable[[Any, Tensor], Tensor], method: Any) -> Story:
    # The hash must not be lost with an equality of its own.
    members = {"__hash__": object.__hash__, name: method, "__exit__": lambda self, *error: None}
    cls = type("Owner", (), {"rate": 2.0, **members})
    owner = cls()
    yield lambda x: use(owner, x)
    owner.rate = 3.0
    yield
    cls.rate = 4.0
    del owner.rate
    yield
    original = getattr(cls, name)
    setattr(cls, name, lambda self, *args: original(type("Shown", (), {"rate": 3.0})(), *args))
    yield


class Described:
    """A descriptor with a number and a table of its own."""

    def __init__(self) -> None:
        self.scale = 2.0
        self.table = {"a": 1.0}

    def __get__(self, owner: Any, cls: Any) -> float:
        return self.scale - self.table["a"] + (owner.shift if owner is not None else 0.0)


@follows()
def test_a_descriptor() -> Story:
    described = Described()
    cls = type("Owner", (), {"value": described, "shift": 3.0})
    owner: Any = cls()
    yield lambda x: x * owner.value - cls.value  # type: ignore[attr-defined]
    described.scale = 5.0
    yield
    described.table["a"] = 2.0
    yield
    owner.shift = 7.0
    yield
    cls.value = 9.0  # type: ignore[attr-defined]
    yield


@follows()
def test_an_attribute_of_a_metaclass() -> Story:
    class Meta(type):
        scale = 2.0

        @property
        def doubled(cls) -> float:
            return cls.scale * 2

        def __len__(cls) -> int:
            return int(cls.scale)

    class Owner(metaclass=Meta):
        pass

    yield lambda x: x * Owner.scale - Owner.doubled + len(Owner) * 3
    Meta.scale = 3.0
    yield
    Owner.scale = 5.0
    yield


@follows()
def test_a_class_called_to_make_an_object() -> Story:
    class Point:
        scale = 2.0

        def __init__(self, x: Tensor) -> None:
            self.x = x * self.scale

        def __sub__(self, other: float) -> Tensor:
            return self.x - other * self.scale

    yield lambda x: Point(x) - 1
    Point.scale = 3.0
    yield
    Point.__init__ = lambda self, x: setattr(self, "x", x - 5)  # type: ignore[method-assign]
    yield


@follows()
def test_derived_classes_that_c_code_asks_for() -> Story:
    class Step:
        scale = 2.0

    def program(x: Tensor) -> Tensor:
        for classes in map(Step.__subclasses__, ()), map(type.__subclasses__, (Step,)):
            for cls in itertools.chain(*classes):
                x = x * cls.scale - 1
        return x

    yield program
    type("Second", (Step,), {"scale": 3.0})
    yield


def test_derived_classes_that_nothing_asked_for_are_no_guard() -> None:
    class Step:
        scale = 2.0

    def program(x: Tensor, is_old: bool = False) -> Tensor:
        classes = Step.__subclasses__() if is_old else (Step,)
        return x * len(classes) - 1

    jitted = jit(program)
    jitted(torch.ones(2)), jitted(torch.ones(2))
    kept = type("Second", (Step,), {"scale": 3.0})
    assert_same(jitted(torch.ones(2)), program(torch.ones(2)))
    assert jitted.statistics().recordings == 1 and "__subclasses__" not in jitted.explain()
    del kept


@follows()
def test_classes_found_as_those_that_are_derived_from_one() -> Story:
    class Step:
        scale = 2.0

    class First(Step):
        pass

    def program(x: Tensor) -> Tensor:
        for cls in Step.__subclasses__():
            x = x * cls.scale - 1
        return x

    yield program
    second = type("Second", (Step,), {"scale": 3.0})
    yield
    First.scale = 5.0
    yield
    type("Third", (second,), {})  # is not derived from `Step` itself
    yield


@pytest.mark.parametrize("installed", [False, True])
@follows()
def test_a_method_that_a_context_manager_decorates(installed: bool) -> Story:
    source = (
        "class Layer:\n"
        "    factor = 2.0\n"
        "    @quiet()\n"
        "    def scaled(self, x):\n"
        "        return x * self.factor - 1\n"
        "    @staticmethod\n"
        "    @quiet()\n"
        "    def shifted(x):\n"
        "        return x * 3 - 2\n"
    )

    @contextlib.contextmanager
    def quiet() -> Iterator[None]:
        yield

    scope: dict[str, Any] = {"quiet": quiet, "__name__": __name__}
    exec(compile(source, FILE if installed else "<text>", "exec"), scope)
    layer = scope["Layer"]()
    yield lambda x: layer.scaled(layer.shifted(x))
    layer.factor = 3.0
    yield
    type(layer).shifted = staticmethod(lambda x: x - 5)
    yield
