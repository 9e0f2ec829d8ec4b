"""What recordings are worth, and which stay where there is no room for all."""

from __future__ import annotations

import pytest

from treeplay.device.use import Use, dearer


def used(calls: int, now: int, *, saved: float = 1e-3, nbytes: int = 100) -> Use:
    use = Use(saved, nbytes)
    use.called(calls, now)
    return use


def test_more_calls_more_time_saved_and_fewer_bytes_are_worth_more() -> None:
    plain = used(10, 100)
    assert used(20, 100).value(100) == pytest.approx(2 * plain.value(100))
    assert used(10, 100, saved=2e-3).value(100) == pytest.approx(2 * plain.value(100))
    assert used(10, 100, nbytes=50).value(100) == pytest.approx(2 * plain.value(100))


def test_old_calls_count_less_and_are_never_forgotten_at_once() -> None:
    old = used(100, 0)
    assert old.value(512) == pytest.approx(old.value(0) / 2)
    assert used(60, 512).value(512) > old.value(512) > used(40, 512).value(512) > old.value(2048)
    old.called(10, 512)
    assert old.value(512) == pytest.approx(used(60, 512).value(512))


def test_what_was_let_go_takes_the_place_only_of_what_is_clearly_worth_less() -> None:
    others = [used(calls, 0) for calls in (4, 8, 9, 10, 100)]
    assert dearer(used(10, 0), others, 0) == others[2:]
    assert dearer(used(1000, 0), others, 0) == [] and dearer(used(1, 0), others, 0) == others
