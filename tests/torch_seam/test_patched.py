"""What several threads put in the place of one function, and take away again in whatever order."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from support.children import in_a_child
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


def test_a_module_may_be_given_what_its_code_finds_among_the_builtins() -> None:
    owner: Any = ModuleType("owner")
    exec("def asked(value): return float(value)", vars(owner))
    shared = Shared(
        owner, "float", lambda original, value: lambda given: original(given) - 1 if value() else original(given)
    )
    with shared.wanted():
        assert owner.asked(3) == 2.0
    assert owner.asked(3) == 3.0 and "float" not in vars(owner)


def test_each_thread_has_a_value_of_its_own() -> None:
    owner: Any = Owner()
    shared = Shared(owner, "name", lambda original, value: lambda: value())
    with shared.wanted("outer"), ThreadPoolExecutor(1) as other:
        with shared.wanted("inner"):
            assert owner.name() == "inner" and other.submit(lambda: owner.name()).result() is None
        assert owner.name() == "outer"
    assert owner.name() == "original"


def test_what_a_class_only_inherits_is_inherited_again() -> None:
    class Heir(Owner):
        pass

    with Shared(Heir, "name", make).wanted():
        assert Heir.name() == "not original" and Owner.name() == "original"
        assert without_stand_in(vars(Heir)["name"]) is ABSENT
    assert Heir.name() == "original" and "name" not in vars(Heir)


def test_a_module_is_looked_for_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, module = Shared("a_module_of_nobody", "name", make), ModuleType("a_module_of_nobody")
    with shared.wanted():
        monkeypatch.setitem(sys.modules, module.__name__, module)
        with shared.wanted():
            assert vars(module).get("name") is None
        module.name = Owner.name  # type: ignore[attr-defined]
        with shared.wanted():
            assert module.name() == "not original"
    assert module.name is Owner.name


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_has_nothing_that_only_other_threads_wanted() -> None:
    owner: Any = Owner()
    owner.name = original = Owner.name
    shared = Shared(owner, "name", make)
    may_leave, has_entered = threading.Event(), threading.Event()

    def other() -> None:
        with shared.wanted():
            has_entered.set()
            may_leave.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    has_entered.wait(30)
    assert owner.name is not original and in_a_child(lambda: owner.name is original)
    may_leave.set()
    thread.join()


def test_a_property_is_seen_through_too() -> None:
    def read(_: Any) -> None:
        """Stands for nothing."""

    stand_in(read, ABSENT)
    assert without_stand_in(property(read)) is ABSENT
    plain = property(lambda _: None)
    assert without_stand_in(plain) is plain
