"""Plain namespaces, whose reads nobody sees: what code names counts, and all of one that code takes whole."""

from __future__ import annotations

import copy
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from support.follows import Story, follows
from support.reached import labels, reached

Tensor = torch.Tensor
Namespace = types.SimpleNamespace


@pytest.mark.parametrize("make", [lambda n: np.full(3, n), str, lambda n: [n], lambda n: {"n": n}])
@follows(recordings=1)
def test_an_attribute_that_no_code_names(make: Callable[[float], Any]) -> Story:
    held = Namespace(scale=2.0, seen=make(0.0))
    yield lambda x: x * held.scale - 1
    for n in (1.0, 2.0, 3.0):
        held.seen = make(n)
        yield


@follows(recordings=1)
def test_an_attribute_that_no_code_names_beside_one_that_the_program_counts() -> Story:
    held = Namespace(calls=0, seen="a")

    def program(x: Tensor) -> Tensor:
        held.calls += 1
        return x * held.calls - 1

    yield program, lambda: vars(held)
    for text in "bcd":
        held.seen = text
        yield


@follows(recordings=2)
def test_an_attribute_that_comes_and_goes() -> Story:
    held = Namespace(calls=0, seen="a")

    def program(x: Tensor) -> Tensor:
        held.calls += 1
        return x * (5.0 if hasattr(held, "scale") else 2.0) - held.calls

    yield program
    del held.seen
    held.scale = 1.0
    yield
    del held.scale
    held.seen = "a"
    yield


WHOLE: dict[str, Callable[[Any], Any]] = {
    "repr": lambda held: len(repr(held)),
    "text": lambda held: len(f"{held}"),
    "percent": lambda held: len("%s" % (held,)),  # noqa: UP031
    "format": lambda held: len("{}".format(held)),  # noqa: UP032
    "method": lambda held: len(held.__repr__()),
    "vars": lambda held: sum(map(len, vars(held).values())),
    "dictionary": lambda held: sum(map(len, held.__dict__.values())),
    "getattr": lambda held: len(getattr(held, "".join(["se", "en"]))),
    "attrgetter": lambda held: len(operator.attrgetter("".join(["se", "en"]))(held)),
    "behind": lambda held: len(object.__getattribute__(held, "".join(["se", "en"]))),
    "copy": lambda held: sum(map(len, copy.copy(held).__dict__.values())),
    "equal": lambda held: 3 if held == OTHER else 7,
    "in": lambda held: 3 if held in [OTHER] else 7,
    "made": lambda held: 3 if held == types.SimpleNamespace(**GIVEN) else 7,
    "list": lambda held: [OTHER, held].index(held),
    "operator": lambda held: 3 if operator.ne(held, OTHER) else 7,
}
OTHER = Namespace(seen="bbb")
GIVEN = {"".join(["se", "en"]): "bbb"}


@pytest.mark.parametrize("read", WHOLE.values(), ids=WHOLE)
@follows()
def test_a_namespace_that_is_taken_whole(read: Callable[[Any], Any]) -> Story:
    held = Namespace(**{"".join(["se", "en"]): "a"})
    yield lambda x: x * read(held) - 1
    vars(held)["".join(["se", "en"])] = "bbb"
    yield


def test_of_two_that_are_not_compared_what_no_code_names_does_not_count() -> None:
    held = Namespace(inner=Namespace(scale=2.0, seen=1.0))
    found = labels(reached(lambda h: h.inner.scale, held, classes=()))
    assert "argument.inner.scale" in found and "argument.inner.seen" not in found


def test_of_one_that_is_compared_with_a_constant_what_no_code_names_does_not_count() -> None:
    held = Namespace(inner=Namespace(scale=2.0, seen=1.0))
    found = labels(reached(lambda h: h.inner == 3, held, classes=()))
    assert "argument.inner.seen" not in found


def test_of_one_that_is_matched_by_its_class_all_counts() -> None:
    def program(held: Any) -> float:
        match held:
            case types.SimpleNamespace(scale=found):
                return float(found)
        return 0.0

    assert "argument.scale" in labels(reached(program, Namespace(scale=2.0), classes=()))
