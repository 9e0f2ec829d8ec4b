"""Functions, methods and classes that are replaced or altered between calls, and the numbers that they read."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import math
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from support.follows import Story, follows

Tensor = torch.Tensor
FACTOR = 2.0


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


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "defaults": lambda f: setattr(f, "__defaults__", (5.0,)),
    "keyword defaults": lambda f: setattr(f, "__kwdefaults__", {"shift": 5.0}),
    "an item of the keyword defaults": lambda f: f.__kwdefaults__.update(shift=5.0),
    "code": lambda f: setattr(f, "__code__", (lambda x, scale=2.0, *, shift=1.0: x - scale * shift * 7).__code__),
    "defaults that vanish": lambda f: setattr(f, "__kwdefaults__", {"shift": 0.0}),
}


@pytest.mark.parametrize("change", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("where", ["program", "helper", "partial", "dict"])
@follows()
def test_a_part_of_a_function(change: Callable[[Any], Any], where: str) -> Story:
    def helper(x: Tensor, scale: float = 2.0, *, shift: float = 1.0) -> Tensor:
        return x * scale * 3.0 - shift

    bound, table = functools.partial(helper), {"helper": helper}
    if where == "program":
        yield helper
    elif where == "helper":
        yield lambda x: helper(x)
    else:
        yield (lambda x: bound(x)) if where == "partial" else (lambda x: table["helper"](x))
    change(helper)
    yield


@follows()
def test_an_attribute_of_a_function() -> Story:
    def helper(x: Tensor) -> Tensor:
        return x * getattr(helper, "rate", 3.0) - 1

    yield lambda x: helper(x)
    helper.rate = 5.0  # type: ignore[attr-defined]
    yield
    del helper.rate  # type: ignore[attr-defined]
    yield


@follows()
def test_a_list_in_a_default() -> Story:
    def helper(x: Tensor, rates: list[float] = [2.0]) -> Tensor:  # noqa: B006
        return x * rates[0] - len(rates)

    yield lambda x: helper(x)
    helper.__defaults__[0][0] = 3.0  # type: ignore[index]
    yield
    helper.__defaults__[0].append(4.0)  # type: ignore[index]
    yield


def _decorated(factor: Any) -> Callable[..., Any]:
    def decorate(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(function)
        def inner(x: Tensor) -> Tensor:
            return function(x) * factor() - 1

        return inner

    return decorate


@follows()
def test_the_number_that_a_decorator_reads() -> Story:
    factor = 2.0

    @_decorated(lambda: factor)
    def program(x: Tensor) -> Tensor:
        return x * 3

    yield program
    factor = 5.0
    yield


@follows()
def test_numbers_of_nested_functions() -> Story:
    scale, table = 2.0, {"shift": 1.0}

    def outer(x: Tensor) -> Tensor:
        def middle(y: Tensor) -> Tensor:
            def inner(z: Tensor) -> Tensor:
                return z * scale - table["shift"]

            return inner(y) * 2

        return middle(x)

    yield outer
    scale = 3.0
    yield
    table["shift"] = 4.0
    yield


@follows()
def test_the_number_that_a_generator_reads() -> Story:
    scale = 2.0

    def steps(count: int) -> Iterator[float]:
        for k in range(count):
            yield scale + k

    def program(x: Tensor) -> Tensor:
        for step in steps(3):
            x = x * step - 1
        return x

    yield program
    scale = 3.0
    yield


@follows()
def test_a_cached_function_gives_what_eager_gives() -> Story:
    scale = 2.0

    @functools.lru_cache
    def cached(k: int) -> float:
        return scale + k

    yield lambda x: x * cached(1) - 1
    scale = 3.0
    yield
    cached.cache_clear()
    yield


@follows()
def test_a_cached_property_that_is_forgotten() -> Story:
    class Owner:
        scale = 2.0

        @functools.cached_property
        def double(self) -> float:
            return self.scale * 2

    owner = Owner()
    yield lambda x: x * owner.double - 1
    owner.scale = 3.0
    yield
    del owner.double
    yield


@follows()
def test_a_generic_function_that_learns_another_kind() -> Story:
    @functools.singledispatch
    def combine(value: Any, x: Tensor) -> Tensor:
        return x * 2 - 1

    yield lambda x: combine(3, x)
    combine.register(int, lambda value, x: x - value)
    yield


@follows()
def test_a_context_manager_of_ones_own() -> Story:
    scale = [2.0]

    class Scaled:
        def __enter__(self) -> float:
            return scale[0]

        def __exit__(self, *error: Any) -> None:
            return None

    @contextlib.contextmanager
    def shifted() -> Iterator[float]:
        yield scale[0] * 3

    def program(x: Tensor) -> Tensor:
        with Scaled() as factor, shifted() as shift:
            return x * factor - shift

    yield program
    scale[0] = 3.0
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


HOOKS: dict[str, Callable[[Tensor, Callable[[Any], Any]], Any]] = {
    "gradient": lambda p, f: p.register_hook(f),
    "after accumulation": lambda p, f: p.register_post_accumulate_grad_hook(lambda q: _changed(q.grad, f)),
}


def _changed(gradient: Any, change: Callable[[Any], Any]) -> None:
    gradient.copy_(change(gradient))


@pytest.mark.parametrize("register", HOOKS.values(), ids=HOOKS)
@follows(grad=True)
def test_a_hook_of_a_parameter(register: Callable[[Tensor, Callable[[Any], Any]], Any]) -> Story:
    weight, scale = torch.ones(3, requires_grad=True), [2.0]

    def step(x: Tensor) -> Tensor:
        weight.grad = None
        (weight * x).sum().backward()
        return weight.grad * 2 - 1  # type: ignore[operator]

    handle = register(weight, lambda grad: grad * scale[0] - 1)
    yield step, lambda: weight.grad
    scale[0] = 3.0
    yield
    handle.remove()
    yield
    register(weight, lambda grad: grad - 5)
    yield


@pytest.mark.parametrize("how", ["import", "from", "import_module", "sys.modules"])
def test_a_module_imported_inside_of_a_function(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("settings_inside")
    exec("GAIN = 2.0\ndef scaled(x):\n    return x * GAIN - 1", vars(module))
    monkeypatch.setitem(sys.modules, "settings_inside", module)

    def program(x: Tensor) -> Tensor:
        if how == "import":
            import settings_inside

            return settings_inside.scaled(x) * settings_inside.GAIN
        if how == "from":
            from settings_inside import GAIN, scaled

            return scaled(x) * GAIN
        found = importlib.import_module("settings_inside") if how == "import_module" else sys.modules["settings_inside"]
        return found.scaled(x) * found.GAIN

    @follows(worlds=1)
    def story() -> Story:
        yield program
        module.GAIN = 3.0
        yield
        module.scaled = lambda x: x - 5
        yield
        other: Any = types.ModuleType("settings_inside")
        other.GAIN, other.scaled = 7.0, lambda x: x - 9
        monkeypatch.setitem(sys.modules, "settings_inside", other)
        yield

    story()


@follows()
def test_a_thread_local() -> Story:
    class Local(threading.local):
        scale = 2.0

    local, plain = Local(), threading.local()
    plain.shift = 1.0
    yield lambda x: x * local.scale - plain.shift
    local.scale = 3.0
    yield
    plain.shift = 4.0
    yield


def test_a_context_variable() -> None:
    scale: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=2.0)
    table: contextvars.ContextVar[dict[str, float]] = contextvars.ContextVar("table")
    table.set({"shift": 1.0})

    @follows(worlds=1)
    def story() -> Story:
        yield lambda x: x * scale.get() - table.get()["shift"]
        scale.set(3.0)
        yield
        table.get()["shift"] = 4.0
        yield
        table.set({"shift": 5.0})
        yield

    story()


LIBRARY = {
    "function of torch": (torch, "relu", lambda x: torch.relu(x) * 2 - 1, lambda x: x - 5),
    "functional": (F, "silu", lambda x: F.silu(x) * 2 - 1, lambda x: x - 5),
    "method of a tensor": (Tensor, "relu", lambda x: x.relu() * 2 - 1, lambda x: x - 5),
    "function of math": (math, "sin", lambda x: x * math.sin(1.0) - 1, lambda value: 5.0),
    "constant of math": (math, "tau", lambda x: x * math.tau - 1, 5.0),
    "class of torch": (torch.nn, "Tanh", lambda x: torch.nn.Tanh()(x) - 1, torch.nn.Sigmoid),
    "forward of a module of torch": (torch.nn.Tanh, "forward", lambda x: torch.nn.Tanh()(x) - 1, lambda self, x: x - 5),
}


@pytest.mark.parametrize(("owner", "name", "program", "other"), LIBRARY.values(), ids=LIBRARY)
def test_a_function_of_a_library_that_is_replaced(
    owner: Any, name: str, program: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @follows(worlds=1)
    def story() -> Story:
        yield program
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, other)
            yield
        yield

    story()


def test_a_global_function_and_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    @follows(worlds=1)
    def story() -> Story:
        yield lambda x: _scaled(x) * 2
        monkeypatch.setitem(globals(), "FACTOR", 3.0)
        yield
        monkeypatch.setitem(globals(), "_scaled", lambda x: x - 5 * FACTOR)
        yield
        monkeypatch.setitem(globals(), "FACTOR", 4.0)
        yield

    story()


def _scaled(x: Tensor) -> Tensor:
    return x * FACTOR - 1


@follows()
def test_a_function_made_by_exec_with_globals_of_its_own() -> Story:
    table: dict[str, Any] = {"GAIN": 2.0}
    exec("def scaled(x):\n    return x * GAIN - 1", table)
    scaled = table["scaled"]
    yield lambda x: scaled(x) * 2
    table["GAIN"] = 3.0
    yield


@follows()
def test_functions_in_a_registry() -> Story:
    registry: dict[str, Any] = {}

    def register(name: str) -> Callable[[Any], Any]:
        return lambda function: registry.setdefault(name, function)

    register("a")(lambda x: x * 2)
    register("b")(lambda x: x - 1)

    def program(x: Tensor) -> Tensor:
        for name in sorted(registry):
            x = registry[name](x)
        return x

    yield program
    registry["b"] = lambda x: x - 5
    yield
    register("c")(lambda x: x * 3)
    yield
    del registry["a"]
    yield
