"""Calls that are left alone are counted once, whatever other threads do meanwhile."""

from __future__ import annotations

from treeplay.tree.table import Entry
from treeplay.tree.worth.budget import Pause


class Raced(Pause):
    """One whose every look at what is left lets another thread leave a call alone."""

    _others = 0

    @property
    def left(self) -> int:  # type: ignore[override]
        self._left -= self._others
        return self._left

    @left.setter
    def left(self, count: int) -> None:
        self._left = count


def test_calls_that_other_threads_leave_alone_meanwhile_are_counted() -> None:
    pause = Raced()
    for _ in range(20):
        pause.looked(Entry({}), "refused", cost=1e-4, ran=1e-6, served=0)
    before = pause.left
    pause._others = 1
    counted = sum(pause.taken() for _ in range(7))
    pause._others = 0
    assert before > 7 and counted == before - pause.left
