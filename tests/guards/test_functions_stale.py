"""Functions, methods and classes that are replaced or altered between calls, and the numbers that they read."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from support.follows import Story, follows

Tensor = torch.Tensor
FACTOR = 2.0


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
def test_an_attribute_of_a_function_that_is_not_called() -> Story:
    def settings() -> None:
        """Holds numbers."""

    settings.rate = 2.0  # type: ignore[attr-defined]
    settings.rates = [1.0]  # type: ignore[attr-defined]
    yield lambda x: x * settings.rate - getattr(settings, "shift", 1.0) + sum(settings.rates)  # type: ignore[attr-defined]
    settings.rate = 5.0  # type: ignore[attr-defined]
    yield
    settings.shift = 7.0  # type: ignore[attr-defined]
    yield
    settings.rates.append(3.0)  # type: ignore[attr-defined]
    yield


@pytest.mark.parametrize(
    "read",
    [
        lambda f: inspect.signature(f).parameters["rate"].default + inspect.signature(f).parameters["shift"].default,
        lambda f: f.__defaults__[0] + f.__kwdefaults__["shift"],
    ],
)
@follows()
def test_the_defaults_of_a_function_that_is_not_called(read: Callable[[Any], float]) -> Story:
    def settings(rate: float = 2.0, *, shift: float = 1.0) -> None:
        """Holds numbers."""

    yield lambda x: x * read(settings)
    settings.__defaults__ = (5.0,)
    yield
    settings.__kwdefaults__["shift"] = 7.0
    yield


@pytest.mark.parametrize("kind", [lambda function: function, staticmethod, classmethod])
@pytest.mark.parametrize("is_called", [False, True])
@follows()
def test_defaults_that_a_function_gets_later(kind: Callable[[Any], Any], is_called: bool) -> Story:
    def function(_: Any) -> float:
        return 3.0

    class Owner:
        held = kind(function)

    def program(x: Tensor) -> Tensor:
        if is_called:
            x = x - function(0)
        asked = inspect.getattr_static(Owner, "held")
        asked = getattr(asked, "__func__", asked)
        return x * (asked.__defaults__ or (2.0,))[0] - (asked.__kwdefaults__ or {"shift": 1.0})["shift"]

    yield program
    function.__defaults__ = (5.0,)
    yield
    function.__kwdefaults__ = {"shift": 7.0}
    yield


@pytest.mark.parametrize(
    "read", [lambda f: f.__closure__[0].cell_contents, lambda f: inspect.getclosurevars(f).nonlocals["scale"]]
)
@pytest.mark.parametrize("where", ["variable", "list", "property"])
@follows()
def test_the_closure_of_a_function_that_is_not_called(read: Callable[[Any], float], where: str) -> Story:
    scale = 2.0

    def function(_: Any = None) -> float:
        return scale

    class Owner:
        kept = property(function)

    held = [function]
    find: dict[str, Callable[[], Any]] = {
        "variable": lambda: function,
        "list": lambda: held[0],
        "property": lambda: Owner.kept.fget,  # type: ignore[attr-defined]
    }
    yield lambda x: x * read(find[where]()) - 1
    scale = 5.0
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


@pytest.mark.parametrize("maxsize", [1, 2])
@follows()
def test_an_entry_that_a_full_cache_drops_and_computes_anew(maxsize: int) -> Story:
    """The new entry lies in the link that the old one had."""
    scales = [2.0]

    @functools.lru_cache(maxsize)
    def cached(k: int) -> Tensor:
        return torch.arange(3.0) * k - scales[0]

    yield lambda x: x * 2 - cached(3)
    for scale in (5.0, 7.0):
        scales[0] = scale
        for k in range(7, 7 + maxsize):
            cached(k)
        cached(3)
        yield


@follows()
def test_a_number_that_a_full_cache_computes_anew_under_a_key_of_several_arguments() -> Story:
    scales = [2.0]

    @functools.lru_cache(1)
    def cached(k: int, by: float = 1.0) -> float:
        return scales[0] + k * by

    yield lambda x: x * cached(3, by=2.0) - 1
    for scale in (5.0, 5.0, 7.0):
        scales[0] = scale
        cached(7)
        cached(3, by=2.0)
        yield


@follows()
def test_a_list_that_a_full_cache_makes_anew() -> Story:
    scales = [2.0]

    @functools.lru_cache(1)
    def cached(k: int) -> list[Any]:
        return [scales[0], torch.ones(3) * k]

    yield lambda x: x * cached(3)[0] - cached(3)[1]
    for scale in (5.0, 7.0):
        scales[0] = scale
        cached(7)
        cached(3)
        yield
    cached(3)[0] = 9.0
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
