"""What several threads put in the place of one function, and take away again in whatever order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from treeplay.torch_seam.patched import ABSENT, Shared, stand_in, without_stand_in


class Owner:
    @staticmethod
    def name() -> str:
        return "original"


def make(original: Any, is_wanted: Callable[[], bool]) -> Any:
    return lambda: f"not {original()}" if is_wanted() else original()


def test_a_shared_stand_in_goes_with_the_last_who_wants_it() -> None:
    owner: Any = Owner()
    owner.name = original = Owner.name
    shared = Shared(owner, "name", make)
    may_leave, has_entered = threading.Event(), threading.Event()
    seen: list[str] = []

    def other() -> None:
        with shared.wanted():
            has_entered.set()
            may_leave.wait(30)
            seen.append(owner.name())

    thread = threading.Thread(target=other)
    with shared.wanted():
        thread.start()
        has_entered.wait(30)
        assert owner.name() == "not original"
    assert owner.name() == "original" and owner.name is not original  # it is there for the other thread alone
    may_leave.set()
    thread.join()
    assert seen == ["not original"] and owner.name is original


def test_a_property_is_seen_through_too() -> None:
    def read(_: Any) -> None:
        """Stands for nothing."""

    stand_in(read, ABSENT)
    assert without_stand_in(property(read)) is ABSENT
    plain = property(lambda _: None)
    assert without_stand_in(plain) is plain
