"""Reads: which attributes a block reads and assigns is noted, whoever asks for them, and nothing stays changed."""

from __future__ import annotations

import collections
import copy
import gc
import operator
import pickle
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from treeplay.guards import reads as reads_module
from treeplay.guards.reads import WHOLE, ReadHooks, Reads, classes_of, entry_of, hooks_of_modules, is_machinery
from treeplay.torch_seam.patched import without_stand_in
from treeplay.trace import jit as tracing


class Plain:
    def __init__(self) -> None:
        self.a = 1.0
        self.b = 2.0


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a = 1.0


class Meta(type):
    @property
    def size(cls) -> int:
        return 3


class OfMeta(metaclass=Meta):
    a = 1.0


class Careful:
    """A class that already looks at its reads and stores."""

    seen: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        Careful.seen.append(f"get {name}")
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        Careful.seen.append(f"set {name}")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        Careful.seen.append(f"delete {name}")
        object.__delattr__(self, name)


def noted(value: Any, program: Callable[[Any], Any], *also: type) -> list[str]:
    """The names that a program reads of a value."""
    with Reads([type(value), *also]) as reads:
        program(value)
    return list(reads.names(value))


READS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "an attribute": (lambda v: v.a, ["a"]),
    "two, in their order": (lambda v: v.b + v.a, ["b", "a"]),
    "one twice": (lambda v: v.a + v.a, ["a"]),
    "getattr with a computed name": (lambda v: getattr(v, "AB".lower()[0]), ["a"]),
    "getattr of what is absent": (lambda v: getattr(v, "c", None), ["c"]),
    "hasattr": (lambda v: hasattr(v, "c"), ["c"]),
    "attrgetter": (lambda v: operator.attrgetter("a", "b")(v), ["a", "b"]),
    "map of getattr": (lambda v: list(map(getattr, [v, v], ["a", "b"])), ["a", "b"]),
    "format": (lambda v: f"{v.a}", ["a"]),
    "str.format": (lambda v: "{x.a}".format_map({"x": v}), ["a"]),
    "a pattern": (lambda v: _matched(v), ["b"]),
    "vars": (lambda v: vars(v), [WHOLE]),
    "dir": (lambda v: dir(v), [WHOLE]),
    "all of the dictionary": (lambda v: list(v.__dict__.items()), [WHOLE]),
    "an entry of the dictionary": (lambda v: v.__dict__["a"], ["a"]),
    "get of the dictionary": (lambda v: v.__dict__.get("c"), ["c"]),
    "membership in the dictionary": (lambda v: "b" in v.__dict__, ["b"]),
    "a computed entry of the dictionary": (lambda v: v.__dict__["AB".lower()[0]], [WHOLE]),
    "the dictionary by getattr": (lambda v: getattr(v, "__dict__")["a"], [WHOLE]),  # noqa: B009
    "nothing": (lambda v: None, []),
    "its class": (lambda v: type(v), []),
}


def _matched(value: Any) -> float:
    match value:
        case Plain(b=found):
            return float(found)
    return 0.0


@pytest.mark.parametrize(("program", "expected"), READS.values(), ids=READS)
def test_what_is_read_is_noted(program: Callable[[Any], Any], expected: list[str]) -> None:
    found = [name for name in noted(Plain(), program) if name != "__class__" or "__class__" in expected]
    assert found == expected


@pytest.mark.parametrize("base", [dict, list, tuple, collections.deque])
def test_a_mixin_behind_a_class_of_an_extension_is_no_place_for_a_hook(base: type) -> None:
    class Mixin:
        def rate(self) -> Any:
            return getattr(self, "a", None)

    class Both(base, Mixin):  # type: ignore[misc, valid-type]
        pass

    assert noted(Both(), lambda v: v.rate()) == ["rate", "a"]


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda f: f.__name__)
def test_a_copy_reads_all(copying: Callable[[Any], Any]) -> None:
    assert WHOLE in noted(Plain(), copying)


def test_a_store_is_noted_with_what_was_there() -> None:
    value = Plain()
    with Reads([Plain]) as reads:
        value.a = 5.0
        value.a = 6.0
        value.c = 7.0  # type: ignore[attr-defined]
        del value.b
    stores = reads.objects[id(value)].assigned
    assert [(name, str(before)) for name, before in stores.items()] == [("a", "1.0"), ("c", "nothing"), ("b", "2.0")]
    assert not reads.names(value) and list(reads.names(value, also_assigned=True)) == ["a", "c", "b"]


def test_what_is_read_after_it_was_assigned_is_no_read() -> None:
    def program(value: Any) -> None:
        value.a = 5.0
        value.b += value.a

    assert noted(Plain(), program) == ["b"]


def test_a_method_is_read_by_its_name_and_reads_on() -> None:
    class Scaled(Plain):
        @property
        def twice(self) -> float:
            return 2 * self.a

        def scaled(self) -> float:
            return self.twice

    assert noted(Scaled(), lambda v: v.scaled()) == ["scaled", "twice", "a"]


def test_other_threads_are_not_noted() -> None:
    mine, theirs = Plain(), Plain()
    with Reads([Plain]) as reads:
        thread = threading.Thread(target=lambda: (theirs.a, setattr(theirs, "b", 3.0)))
        thread.start()
        thread.join()
        assert mine.a == 1.0
    assert list(reads.names(mine)) == ["a"] and not reads.names(theirs, also_assigned=True) and theirs.b == 3.0


def test_a_pause_leaves_out_what_is_in_it() -> None:
    value = Plain()
    with Reads([Plain]) as reads:
        assert reads.pause() and not reads.pause()
        value.a = value.b
        reads.resume()
        assert value.a == 2.0
    assert list(reads.names(value, also_assigned=True)) == ["a"]
    assert not reads.pause()


def test_another_thread_cannot_pause() -> None:
    answers: list[bool] = []
    value = Plain()
    with Reads([Plain]) as reads:
        thread = threading.Thread(target=lambda: answers.append(reads.pause()))
        thread.start()
        thread.join()
        assert value.a == 1.0
    assert answers == [False] and list(reads.names(value)) == ["a"]


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


def test_slots_are_noted() -> None:
    value = Slotted()
    with Reads([Slotted]) as reads:
        assert value.a == 1.0 and not hasattr(value, "b")
        value.b = 3.0
    assert list(reads.names(value)) == ["a", "b"] and reads.is_watched(value)


def test_instances_of_a_class_with_a_metaclass_are_noted() -> None:
    value = OfMeta()
    with Reads([OfMeta]) as reads:
        assert value.a == 1.0 and OfMeta.size == 3
    assert list(reads.names(value)) == ["a"] and reads.is_watched(value)


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


def test_attributes_of_modules_are_noted() -> None:
    made = ModuleType("made")
    made.rate = 2.0  # type: ignore[attr-defined]
    with Reads([], [made]) as reads:
        assert made.rate == 2.0 and not hasattr(made, "other") and torch.float32 is not None
        assert isinstance(made, ModuleType)
    assert reads.is_watched(made) and reads.is_watched(torch)
    assert list(reads.names(made)) == ["rate", "other"] and "float32" in reads.names(torch)


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


def _state() -> list[Any]:
    watched = (Plain, Slotted, Careful, OfMeta, Diamond, Left, Base, torch.nn.Module, torch.optim.Optimizer)
    tables = [[(name, id(value)) for name, value in vars(cls).items()] for cls in watched]
    kinds = [(name, type(module)) for name, module in sorted(sys.modules.items())]
    return [tables, kinds, gc.callbacks[:], sys.getprofile()]


WATCHED = [Plain, Slotted, Careful, OfMeta, Diamond, torch.nn.Linear, torch.optim.SGD, np.random.RandomState]


def test_everything_is_put_back() -> None:
    before = _state()
    with Reads(WATCHED):
        assert _state() != before
    assert _state() == before


def test_everything_is_put_back_after_an_exception() -> None:
    before = _state()
    with pytest.raises(ValueError, match="as told"), Reads(WATCHED):
        Plain().a += 1
        raise ValueError("as told")
    assert _state() == before


def test_everything_is_put_back_if_watching_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _state()
    monkeypatch.setattr(Reads, "_watch_modules", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError), Reads(WATCHED):
        pass
    monkeypatch.undo()
    assert _state() == before


def test_a_program_may_change_a_watched_class_meanwhile() -> None:
    class Local(Plain):
        pass

    with Reads([Local]) as reads:
        Local.c = 3.0  # type: ignore[attr-defined]
        value = Local()
        assert value.c == 3.0  # type: ignore[attr-defined]
    assert Local.c == 3.0 and list(reads.names(value)) == ["c"]  # type: ignore[attr-defined]


def test_garbage_collection_runs_nobodys_callbacks() -> None:
    calls: list[str] = []

    def callback(phase: str, _: Any) -> None:
        calls.append(phase)

    gc.callbacks.append(callback)
    try:
        with Reads([Plain]):
            gc.collect()
        assert not calls
        gc.collect()
        assert calls
    finally:
        gc.callbacks.remove(callback)


def test_what_stands_in_for_a_class_is_known_as_such() -> None:
    with Reads([Plain, Careful]):
        stands = without_stand_in(vars(Careful)["__getattribute__"])
        added = without_stand_in(vars(Plain)["__getattribute__"])
    assert stands is vars(Careful)["__getattribute__"] and str(added) == "nothing"


def test_code_and_builtins_that_ran_are_known_afterwards() -> None:
    def program(value: Any) -> int:
        return len([value.a])

    with Reads([Plain]) as reads:
        program(Plain())
    assert program.__code__ in (reads.code or {}).values()
    assert any(program.__code__ in callers for name, callers in reads.builtins.items() if name.endswith("len"))


def test_objects_are_forgotten() -> None:
    value = Plain()
    with Reads([Plain]) as reads:
        assert value.a == 1.0
    reads.forget()
    assert not reads.objects and not reads.names(value)


def test_classes_in_reach_are_those_of_objects_and_of_what_they_hold() -> None:
    class Held:
        pass

    value = Plain()
    value.a = Held()  # type: ignore[assignment]
    found = classes_of([value, 1.0, [2.0]])
    assert {Plain, Held} <= set(found) and float not in found and list not in found


def test_what_modules_hold_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    class InModule:
        a = 1.0

    made = ModuleType("test_reads_holding")
    made.value = InModule()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, made.__name__, made)
    before = _state()
    for _ in range(2):  # hooks are made once, and put in again
        with Reads([Plain], standing=hooks_of_modules()) as reads:
            assert made.value.a == 1.0
        assert _state() == before
        assert list(reads.names(made.value)) == ["a"] and reads.is_watched(made.value)
        assert reads.watched >= {Plain, InModule, torch.nn.Module, torch.optim.Optimizer}


def test_symbolic_numbers_in_modules_have_no_hooks() -> None:
    with Reads([], standing=hooks_of_modules()) as reads:
        one = sys.modules["sympy"].S.One
    assert not reads.is_watched(one)


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


def test_an_entry_is_looked_up_without_asking_the_class() -> None:
    value = Careful()
    value.a = 1.0
    Careful.seen.clear()
    assert entry_of(value, "a") == 1.0 and str(entry_of(value, "b")) == str(entry_of(Slotted(), "a")) == "nothing"
    assert not Careful.seen


def test_our_own_files_are_machinery_and_a_users_are_not() -> None:
    assert is_machinery(tracing.__file__ or "") and is_machinery(torch._ops.__file__)
    assert not is_machinery(__file__) and not is_machinery(torch.nn.modules.linear.__file__)


@pytest.mark.parametrize("lists", ["_compilers_modules", "_classes_in_modules"])
def test_modules_are_listed_while_others_are_imported(lists: str) -> None:
    """A collection may begin at each object that is made, and let another thread import."""
    loaded: list[str] = []

    def load(phase: str, info: Any) -> None:
        loaded.append(f"loaded_meanwhile_{len(loaded)}")
        sys.modules[loaded[-1]] = ModuleType(loaded[-1])

    function = getattr(reads_module, lists)
    function = getattr(function, "__wrapped__", function)
    given = (0,) * function.__code__.co_argcount
    thresholds = gc.get_threshold()
    gc.callbacks.append(load)
    gc.set_threshold(1)
    try:
        function(*given)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(load)
        for name in loaded:
            del sys.modules[name]
    assert loaded
