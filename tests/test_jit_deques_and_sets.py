"""Deques are containers as lists are, with the most items that they may have; sets of constants are part of the key."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import assert_same, jit
from treeplay import Refusal

Tensor = torch.Tensor


def t(at: int) -> Tensor:
    return torch.arange(3.0) + at


def history(at: int, most: int | None = None) -> deque[Tensor]:
    return deque([t(at), t(1)], most)


def assert_deques(found: Any, expected: Any) -> None:
    """The same containers with the same in them."""
    assert type(found) is type(expected)
    if isinstance(expected, deque):
        assert found.maxlen == expected.maxlen and len(found) == len(expected)
    if isinstance(expected, (deque, list, tuple)):
        for mine, other in zip(found, expected, strict=True):
            assert_deques(mine, other)
    else:
        assert_same(found, expected)


def rotated(held: deque[Tensor]) -> Tensor:
    held.append(held[0] * 2 - held[1])
    return held[-1] - 1


def assigned(held: deque[Tensor]) -> Tensor:
    held[0] = held[1] * 2
    return held[0] - held[1]


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "read": (lambda held: held[0] * 2 - held[1], lambda at: (history(at),)),
    "its most items": (lambda held: sum(held) * held.maxlen, lambda at: (history(at, 4),)),
    "numbers": (lambda x, held: x * held[0] - held[1], lambda at: (t(at), deque([2, 1.5]))),
    "empty": (lambda x, held: x * (len(held) + 2), lambda at: (t(at), deque(maxlen=3))),
    "inside of others": (
        lambda batch: batch["held"][0][0] * 2 - batch["held"][1]["y"],
        lambda at: ({"held": deque([[t(at)], {"y": t(2)}])},),
    ),
    "by keyword and iterated": (
        lambda held: sum(x * at for at, x in enumerate(held, 2)),
        lambda at: (deque([t(at), t(at + 1), t(3)]),),
    ),
    "returned": (lambda held: (held, held[0] * 2), lambda at: (history(at),)),
    "made": (lambda x: deque([x * 2, deque([x - 1]), x], 3), lambda at: (t(at),)),
    "made, and in two places": (lambda x: [deque([x * 2])] * 2, lambda at: (t(at),)),
    "assigned": (assigned, lambda at: (history(at),)),
    "full, and appended to": (rotated, lambda at: (history(at, 2),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_deque_is_replayed(name: str) -> None:
    program, make = PROGRAMS[name]
    jitted = jit(program)
    for at in range(5):
        mine, theirs = make(at), make(at)
        assert_deques(jitted(*mine), program(*theirs))
        assert_deques(mine, theirs)
    assert jitted.statistics().replays == 4


def test_the_deque_that_comes_back_is_the_argument() -> None:
    jitted = jit(lambda held: (held, held[0] * 2))
    for at in range(4):
        held = history(at)
        assert jitted(held)[0] is held
    one, other = jit(lambda x: [deque([x * 2])] * 2)(t(0))
    assert one is other


def test_other_most_items_and_other_counts_are_other_calls() -> None:
    def program(held: deque[Tensor]) -> Tensor:
        return sum(held, held[0]) * (held.maxlen or 7)

    jitted = jit(program)
    for most in (None, 4, 5, None, 4, 5):
        for count in (1, 2):
            for _ in range(2):
                held = deque([t(at) for at in range(count)], most)
                assert_same(jitted(held), program(held))
    assert jitted.statistics().recordings == 6


def test_a_list_is_no_deque() -> None:
    def program(held: Any) -> Tensor:
        return held[0] * 2 if isinstance(held, deque) else held[0] - 1

    jitted = jit(program)
    for held in (deque([t(1)]), [t(1)]) * 3:
        assert_same(jitted(held), program(held))
    assert jitted.statistics().recordings == 2


def test_a_deque_that_grows_is_refused_and_left_as_it_was() -> None:
    def program(held: deque[Tensor]) -> Tensor:
        held.append(held[0] * 2)
        return held[-1] - 1

    jitted, held = jit(program), history(0)
    jitted(history(0))
    with pytest.raises(Refusal, match="from 2 items to 3 items"):
        jitted(held)
    assert_deques(held, history(0))


def test_gradients_through_deques() -> None:
    def program(held: deque[Tensor]) -> deque[Tensor]:
        return deque([held[0] * held[1], held[1] * 3], 2)

    jitted = jit(program)
    for at in range(4):
        mine, theirs = ([(t(at) + k).requires_grad_() for k in range(2)] for _ in range(2))
        found, expected = jitted(deque(mine)), program(deque(theirs))
        assert_deques(deque(x.detach() for x in found), deque(x.detach() for x in expected))
        assert found.maxlen == 2
        for out in (found, expected):
            (out[0] * 2 - out[1]).sum().backward()
        assert_same([x.grad for x in mine], [x.grad for x in theirs])
    assert jitted.statistics().replays == 3


# --- sets ---------------------------------------------------------------------------------------------------

SETS: list[Any] = [{"a", "b"}, {"b"}, set(), {1, 2}, {1.0, 2}, {True, 2}, {torch.float32}, {("a", 1)}]


@pytest.mark.parametrize("kind", [set, frozenset])
def test_sets_of_constants_are_part_of_the_key(kind: Any) -> None:
    def program(x: Tensor, names: Any) -> Tensor:
        if 1 in names:
            x = x - sum(names)
        return x * 2 if "a" in names else x * (len(names) + 3) - int(any(type(name) is float for name in names))

    jitted = jit(program)
    for _ in range(2):
        for names in SETS:
            for at in range(2):
                assert_same(jitted(t(at), kind(names)), program(t(at), kind(names)))
    found = jitted.statistics()
    assert (found.recordings, found.refusals) == (len(SETS), 0)


def test_a_set_that_changes_between_two_calls_is_another_one() -> None:
    names = {"a"}
    jitted = jit(lambda x, names: x * 2 if "b" in names else x - 1)
    for at in range(3):
        assert_same(jitted(t(at), names), t(at) - 1)
    names.add("b")
    for at in range(3):
        assert_same(jitted(t(at), names), t(at) * 2)
    assert jitted.statistics().recordings == 2


def test_a_set_is_followed_in_its_order_which_a_copy_may_not_have() -> None:
    def program(x: Tensor, names: set[int]) -> Tensor:
        for at, name in enumerate(names):
            x = x * (name % 5 - 2) - at
        return x

    grown = set(range(0, 4000, 97)) - set(range(0, 4000, 194))
    collided = {7, 15, 23}  # all three belong in the last place of eight
    assert any(list(set(names)) != list(names) for names in (grown, collided))
    jitted = jit(program)
    for names in (grown, collided) * 2:
        for at in range(2):
            assert_same(jitted(t(at), names), program(t(at), names))
    found = jitted.statistics()
    assert (found.recordings, found.refusals) == (2, 0)


def test_a_set_that_changes_before_a_second_derivative_is_taken_as_it_was() -> None:
    def program(x: Tensor, names: set[int]) -> Tensor:
        return (x**3).sum() * len(names) - x.sum()

    jitted = jit(program)
    for at in range(3):
        names = {1, 2, 3}
        x = (t(at) + 1).requires_grad_()
        (first,) = torch.autograd.grad(jitted(x, names), x, create_graph=True)
        names.add(4)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert_same(second, 18 * x.detach())


def test_a_set_that_the_program_changes_is_refused_and_left_as_it_was() -> None:
    def program(x: Tensor, names: set[str]) -> Tensor:
        names.add("b")
        return x * len(names)

    jitted, names = jit(program), {"a"}
    jitted(t(0), {"a"})
    with pytest.raises(Refusal, match="from 1 items to 2 items"):
        jitted(t(0), names)
    assert names == {"a"}


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_of_tensors_is_refused_with_what_to_do(kind: Any) -> None:
    with pytest.raises(Refusal, match=f"a {kind.__name__} of tensors comes in the order of their addresses") as caught:
        jit(lambda xs: sum(xs))(kind([t(0), t(1)]))
    assert caught.value.op == "argument args[0]"
    assert caught.value.advice == "pass them in a list, a tuple or a dict"


def test_a_set_of_objects_is_refused_with_what_to_do() -> None:
    with pytest.raises(Refusal, match="cannot be hashed") as caught:
        jit(lambda x, objects: x * len(objects))(t(0), {object()})
    assert caught.value.advice.startswith("pass a set of numbers or strings")


def test_a_set_in_an_object_that_the_program_does_not_read_may_be_another_one() -> None:
    class Batch:
        __hash__ = None  # type: ignore[assignment]

        def __init__(self, at: int) -> None:
            self.x, self.names = t(at), {f"file {at}"}

    jitted = jit(lambda batch: batch.x * 2 - 1)
    for at in range(4):
        assert_same(jitted(Batch(at)), t(at) * 2 - 1)
    assert jitted.statistics().replays == 3
