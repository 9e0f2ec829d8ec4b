"""When memory of a pool is stale: captures F1 F2 F3 B3 B2 B1 at positions 0 to 5."""

from __future__ import annotations

import gc

import pytest
import torch

from treeplay.graphs.order import Kept, PoolOrder, ReplayRun, Ticket, order_of

CPU = torch.device("cpu")
F1, F2, F3, B3, B2, B1 = range(6)


@pytest.fixture
def order() -> PoolOrder:
    made = PoolOrder(CPU)
    for _ in range(6):
        made.place()
    return made


def spoilers(order: PoolOrder, start: int, end: int | None) -> list[int]:
    """Which single runs, after one of `start`, make its memory stale."""
    found = []
    for position in range(6):
        since = order.ran(start, ReplayRun("start", 1))
        order.ran(position, ReplayRun(str(position), 2))
        if Ticket(order, start, end, since).spoiler() is not None:
            found.append(position)
    return found


def test_what_a_forward_saved_lives_until_its_backward(order: PoolOrder) -> None:
    assert spoilers(order, F1, B1) == [F1, B1]
    assert spoilers(order, F2, B2) == [F1, F2, B2, B1]
    assert spoilers(order, F3, B3) == [F1, F2, F3, B3, B2, B1]


def test_outputs_are_kept_from_their_capture_on(order: PoolOrder) -> None:
    assert spoilers(order, F1, None) == [F1]
    assert spoilers(order, F3, None) == [F1, F2, F3]


def test_the_last_spoiler_is_named(order: PoolOrder) -> None:
    since = order.ran(F2, ReplayRun("second", 1))
    order.ran(F1, ReplayRun("first", 4))
    order.ran(F3, ReplayRun("third", 9))
    order.ran(F2, ReplayRun("second", 2, is_backward=True))
    spoiler = Ticket(order, F2, B2, since).spoiler()
    assert str(spoiler) == "the backward of call 2 of second"


def test_a_new_capture_may_have_spoiled_what_was_pending(order: PoolOrder) -> None:
    since = order.ran(F1, ReplayRun("first", 1))
    assert Ticket(order, F1, B1, since).spoiler() is None
    order.place()
    assert str(Ticket(order, F1, B1, since).spoiler()) == "the making of another recording of the same pool"


def test_overwritten_outputs_are_those_from_the_position_on() -> None:
    order = PoolOrder(CPU)
    kept = [Kept([torch.ones(index + 1)]) for index in range(3)]
    for item in kept:
        order.place(item)
    assert [len(tensor) for tensor in order.overwritten_by(1)] == [2, 3]
    del kept[2], item
    gc.collect()
    assert [len(tensor) for tensor in order.overwritten_by(1)] == [2]


def test_a_pool_has_one_order_as_long_as_somebody_has_it() -> None:
    token = (12345, 678)
    order = order_of(token, CPU)
    order.place()
    assert order_of(token, CPU) is order
    del order
    gc.collect()
    assert order_of(token, CPU)._times == []
