"""Read hooks: where they are put, that what was there is called once, and that nothing stays changed."""

from __future__ import annotations

import collections
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from support.watched import Careful, Meta, OfMeta, Plain, Slotted, noted, state
from treeplay.guards.reads import reads as reads_module
from treeplay.guards.reads.hooks import ReadHooks
from treeplay.guards.reads.reads import Reads
from treeplay.torch_seam.patched import without_stand_in


@pytest.mark.parametrize("base", [dict, list, tuple, collections.deque])
def test_a_mixin_behind_a_class_of_an_extension_is_no_place_for_a_hook(base: type) -> None:
    class Mixin:
        def rate(self) -> Any:
            return getattr(self, "a", None)

    class Both(base, Mixin):  # type: ignore[misc, valid-type]
        pass

    assert noted(Both(), lambda v: v.rate()) == ["rate", "a"]


def test_a_class_with_its_own_way_to_attributes_keeps_it() -> None:
    value = Careful()
    with Reads([Careful]) as reads:
        Careful.seen.clear()
        value.a = 1.0
        assert value.a == 1.0
        del value.a
        seen = Careful.seen[:]
    assert seen == ["set a", "get a", "delete a"]
    assert list(reads.names(value, also_assigned=True)) == ["a"]


class Base:
    asked = 0

    def __getattribute__(self, name: str) -> Any:
        Base.asked += name == "a"
        return super().__getattribute__(name)


class Left(Base):
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


class Right(Base):
    pass


class Diamond(Left, Right):
    def __init__(self) -> None:
        self.a = 1.0


@pytest.mark.parametrize("order", [[Diamond, Left, Right, Base], [Base, Right, Left, Diamond], [Diamond]])
def test_each_original_is_called_once(order: list[type]) -> None:
    value = Diamond()
    with Reads(order) as reads:
        Base.asked = 0
        assert value.a == 1.0
        asked = Base.asked
    assert asked == 1 and list(reads.names(value)) == ["a"]


def test_a_subclass_is_noted_with_its_base_and_calls_it_once() -> None:
    class Parent:
        stores = 0

        def __setattr__(self, name: str, value: Any) -> None:
            type(self).stores += 1
            super().__setattr__(name, value)

    class Child(Parent):
        pass

    parent, child = Parent(), Child()
    with Reads([Child, Parent]) as reads:
        parent.a = child.a = 1.0  # type: ignore[attr-defined]
    assert (Parent.stores, Child.stores) == (1, 2)  # each counts up from its own class's number
    assert all(list(reads.names(value, also_assigned=True))[-1:] == ["a"] for value in (parent, child))


@pytest.mark.parametrize(
    "value",
    [np.random.RandomState(0), torch.Generator(), slice(1), 1.0, object()],
    ids=lambda value: type(value).__name__,
)
def test_objects_of_extensions_are_not_watched(value: Any) -> None:
    with Reads([type(value)]) as reads:
        pass
    assert not reads.is_watched(value)


@pytest.mark.parametrize("cls", [torch.Tensor, torch.nn.Parameter, ValueError, Meta])
def test_classes_that_are_left_alone(cls: type) -> None:
    with Reads([cls]) as reads:
        assert not reads.watched


def test_modules_of_compilers_keep_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, watched = ModuleType("triton.language"), ModuleType("mine.triton")
    for module in (kept, watched):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with Reads([]):
        assert type(kept) is ModuleType and type(watched) is not ModuleType


def test_a_module_of_a_class_of_its_own_is_not_watched() -> None:
    class Lazy(ModuleType):
        pass

    lazy = Lazy("lazy")
    with Reads([], [lazy]) as reads:
        assert not reads.is_watched(lazy)
    assert type(lazy) is Lazy


WATCHED = [Plain, Slotted, Careful, OfMeta, Diamond, torch.nn.Linear, torch.optim.SGD, np.random.RandomState]


def test_everything_is_put_back() -> None:
    before = state()
    with Reads(WATCHED):
        assert state() != before
    assert state() == before


def test_everything_is_put_back_after_an_exception() -> None:
    before = state()
    with pytest.raises(ValueError, match="as told"), Reads(WATCHED):
        Plain().a += 1
        raise ValueError("as told")
    assert state() == before


def test_everything_is_put_back_if_watching_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state()
    monkeypatch.setattr(reads_module, "watch_modules", lambda further, changed: 1 / 0)
    with pytest.raises(ZeroDivisionError), Reads(WATCHED):
        pass
    monkeypatch.undo()
    assert state() == before


def test_a_program_may_change_a_watched_class_meanwhile() -> None:
    class Local(Plain):
        pass

    with Reads([Local]) as reads:
        Local.c = 3.0  # type: ignore[attr-defined]
        value = Local()
        assert value.c == 3.0  # type: ignore[attr-defined]
    assert Local.c == 3.0 and list(reads.names(value)) == ["c"]  # type: ignore[attr-defined]


def test_what_stands_in_for_a_class_is_known_as_such() -> None:
    with Reads([Plain, Careful]):
        stands = without_stand_in(vars(Careful)["__getattribute__"])
        added = without_stand_in(vars(Plain)["__getattribute__"])
    assert stands is vars(Careful)["__getattribute__"] and str(added) == "nothing"


def test_hooks_are_made_anew_for_a_class_that_has_other_methods_since() -> None:
    class Parent:
        a = 1.0

    class Child(Parent):
        pass

    hooks, value, asked = ReadHooks([Child]), Child(), []
    with Reads([], standing=hooks):
        pass

    def __getattribute__(self: Any, name: str) -> Any:
        asked.append(name)
        return super(Child, self).__getattribute__("b" if name == "a" else name)

    Child.__getattribute__ = __getattribute__  # type: ignore[method-assign]
    Parent.b = 2.0  # type: ignore[attr-defined]
    with Reads([], standing=hooks) as reads:
        assert value.a == 2.0
    assert asked == ["a"] and "a" in reads.names(value)
    assert Child.__getattribute__ is __getattribute__ and "__setattr__" not in vars(Parent)
