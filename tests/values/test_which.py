"""Which of some objects are in a value, and which of them are still there."""

from __future__ import annotations

from typing import Any

from treeplay.values.which import Living, held_in_keys, which_in


class _Plain:
    def __init__(self, held: Any = None) -> None:
        self.held = held


def test_which_objects_are_in_a_value_as_they_come() -> None:
    one, other, third = _Plain(), _Plain(), _Plain()
    assert which_in([1, "a", {"b": (other, 2.5)}, _Plain(third)], [one, other]) == (-1, -1, 1)


def test_an_object_that_is_gone_is_no_longer_among_the_living() -> None:
    living, value = Living(), _Plain()
    living.note(value)
    assert id(value) in living
    at = id(value)
    del value
    assert at not in living and not living.kept


def test_an_object_without_weak_references_is_kept_until_a_guard_leaves_it() -> None:
    living, first, second = Living(), [1], [2]
    living.note(first)
    at = id(first)
    del first
    assert at in living
    living.go_over(living.kept[at], second)
    assert [*living] == [*living.kept] == [id(second)]


class _Key:
    def __init__(self, of: Any) -> None:
        self.of = of

    def __hash__(self) -> int:
        return hash(self.of)


def test_what_is_held_in_keys() -> None:
    one, other, third = _Plain([]), _Plain(), _Plain()
    found = held_in_keys([1, ("a", (one, 2)), frozenset([other]), _Key(third)])
    assert {id(one), id(other), id(third)} <= found.keys()
    assert id(one.held) not in found
