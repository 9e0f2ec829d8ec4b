"""Which keys of containers a piece of code may change, and undoing that goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from treeplay.sandbox.teardown import each
from treeplay.trace.restore.whose import assigned_in, changes_in


def reads(d: Any) -> Any:
    return d["a"] + len(d), d.get("b"), list(d)


def one_key(d: Any) -> None:
    d["a"] = 1
    del d["b"]


def an_attribute(d: Any) -> None:
    d.name = 1
    del d.other


def a_computed_attribute(d: Any, name: str) -> None:
    setattr(d, name, 1)


def a_computed_key(d: Any, key: str) -> None:
    d[key] = 1


def appends(d: Any) -> None:
    d.append(1)


def adds_in_place(d: Any) -> None:
    d += [1]


def part_of_a_list(d: Any) -> None:
    d[1:2] = [3]


def in_an_inner_function(d: Any) -> Any:
    def inner() -> None:
        d["c"] = 1

    return inner


@pytest.mark.parametrize(
    ("function", "keys"),
    [
        (reads, set()),
        (one_key, {"a", "b"}),
        (a_computed_key, None),
        (appends, None),
        (adds_in_place, None),
        (part_of_a_list, None),
        (in_an_inner_function, {"c"}),
    ],
)
def test_the_keys_that_code_may_change(function: Callable[..., Any], keys: set[str] | None) -> None:
    assert changes_in(function.__code__) == keys


def test_the_names_that_code_may_assign() -> None:
    assert assigned_in(an_attribute.__code__) == {"name", "other"}
    assert assigned_in(a_computed_attribute.__code__) is None and not assigned_in(one_key.__code__)


def test_undoing_goes_on_when_a_step_raises() -> None:
    done: list[int] = []

    def undo(number: int) -> None:
        done.append(number)
        if number % 2:
            raise ValueError(number)

    with pytest.raises(ValueError, match="1") as raised:
        each(((number,) for number in range(4)), undo)
    assert done == [0, 1, 2, 3] and raised.value.__notes__ == ["then, while undoing another: ValueError: 3"]
