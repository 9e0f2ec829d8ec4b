"""Words of memory: the C function takes for a change what Python takes for one, and reads no memory that was freed."""

from __future__ import annotations

import collections
import gc
import time
import weakref
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guards.check.test_code import Thing, change, contents, walked
from treeplay.guards.check import quick, words
from treeplay.guards.check.guards import Guards
from treeplay.guards.check.object_layout import ObjectLayout
from treeplay.guards.check.words import Background, Comparer, Words
from treeplay.torch_seam.patched import ABSENT

pytestmark = pytest.mark.compile

Change = Callable[[], object]


def _no() -> bool:
    return False


@pytest.fixture(scope="module")
def comparer() -> Comparer:
    found = Comparer.compiled()
    if found is None:
        pytest.skip("this Python's objects have no such words")
    return found


class Base:
    pass


class Other(Base):
    pass


def function(a: Any = (1,), *, b: Any = (2,)) -> Any:
    return a, b


def other_function(a: Any = (3,), *, b: Any = (4,)) -> Any:
    return b, a


def copied(of: FunctionType) -> FunctionType:
    made = FunctionType(of.__code__, {}, argdefs=of.__defaults__)
    made.__kwdefaults__ = of.__kwdefaults__
    return made


def of_table(act: Callable[[Any], object], cls: type = dict) -> Callable[[Words], Change]:
    def add(found: Words) -> Change:
        table = cls({"a": 1, "b": 2})
        found.add_table(table)
        return lambda: act(table)

    return add


def of_attributes(found: Words) -> Change:
    thing = Thing()
    thing.a = 1  # type: ignore[attr-defined]
    found.add_table(vars(thing))
    return lambda: setattr(thing, "a", 2)


def of_empty(found: Words, cls: type) -> Change:
    table = cls()
    found.add_empty(table)
    return lambda: table.update({"a": 1})


def of_class(found: Words) -> Change:
    value = Base()
    found.add(value, "cls", Base)
    return lambda: setattr(value, "__class__", Other)


def of_order(found: Words) -> Change:
    bases = type("One", (), {}), type("Two", (), {})
    heir = type("Heir", bases[:1], {})
    found.add(heir, "order", heir.__mro__)
    return lambda: setattr(heir, "__bases__", bases[1:])


def of_cell(found: Words) -> Change:
    cell = CellType(1.5)
    found.add(cell, "content", cell.cell_contents)
    return lambda: setattr(cell, "cell_contents", 2.5)


def of_list(act: Callable[[list[Any]], object]) -> Callable[[Words], Change]:
    def add(found: Words) -> Change:
        values = [1.5, "a", None]
        found.add_list(values, 3, [*enumerate(values)][1:])
        return lambda: act(values)

    return add


def of_function(name: str, what: str, *, has_any: bool = True) -> Callable[[Words], Change]:
    def added(found: Words) -> Change:
        one = copied(function)
        if not has_any:
            setattr(one, name, None)
        value = getattr(one, name)
        found.add(one, what, ABSENT if value is None else value)
        return lambda: setattr(one, name, getattr(other_function, name))

    return added


CHANGES: dict[str, Callable[[Words], Change]] = {
    "replaced": of_table(lambda table: table.update(a=3)),
    "new": of_table(lambda table: table.__setitem__("c", 3)),
    "new by default": of_table(lambda table: table.setdefault("c", 3)),
    "deleted": of_table(lambda table: table.__delitem__("a")),
    "popped": of_table(lambda table: table.popitem()),
    "cleared": of_table(lambda table: table.clear()),
    "of an ordered one": of_table(lambda table: table.update(a=3), collections.OrderedDict),
    "attribute": of_attributes,
    "filled": lambda found: of_empty(found, dict),
    "ordered one filled": lambda found: of_empty(found, collections.OrderedDict),
    "class": of_class,
    "bases": of_order,
    "cell": of_cell,
    "element": of_list(lambda values: values.__setitem__(1, "b")),
    "element at the end": of_list(lambda values: values.append(1)),
    "element gone": of_list(lambda values: values.pop(0)),
    "many elements": of_list(lambda values: values.extend(range(1000))),
    "code": of_function("__code__", "code"),
    "defaults": of_function("__defaults__", "defaults"),
    "keywords": of_function("__kwdefaults__", "keywords"),
    "defaults where there were none": of_function("__defaults__", "defaults", has_any=False),
    "keywords where there were none": of_function("__kwdefaults__", "keywords", has_any=False),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_each_kind_of_change_is_told(kind: str, comparer: Comparer) -> None:
    found = Words(comparer)
    for add in CHANGES.values():  # beside all others, which stay
        add(found)
    make_change = CHANGES[kind](found)
    holds = found.check(_no)
    assert holds is not None and holds() and holds()
    make_change()
    assert not holds() and not holds()


def test_what_is_not_as_recorded_is_no_check(comparer: Comparer) -> None:
    found = Words(comparer)
    found.add(Base(), "cls", Other)
    assert found.check(_no) is None


def test_an_element_that_the_call_itself_checks_may_be_another_one(comparer: Comparer) -> None:
    values = ["a", "b"]
    found = Words(comparer)
    found.add_list(values, 2, [(1, values[1])])
    holds = found.check(_no)
    assert holds is not None
    values[0] = "c"
    assert holds()
    values[1] = "c"
    assert not holds()


def test_the_function_keeps_what_it_reads_and_nothing_after(comparer: Comparer) -> None:
    value = Base()
    gone = weakref.ref(value)
    found = Words(comparer)
    found.add(value, "cls", Base)
    holds = found.check(_no)
    del value, found
    gc.collect()
    assert holds is not None and holds() and gone() is not None
    del holds
    assert gone() is None


DROPPED = """
import gc
from treeplay.guards.check import words
from treeplay.guards.check.words import Comparer, Words

comparer = Comparer.compiled()
functions = []
for number in range(2000):
    found = Words(comparer)
    found.add_table({number: number})
    functions.append(found.check(lambda: False))
del comparer, found
others = [words._Method(b"other", 0, 0x200, None) for _ in range(1000)]
print(all(function() for function in functions))
del functions
gc.collect()
"""


@pytest.mark.programs
def test_functions_outlive_who_made_them(fresh_python: Any, comparer: Comparer) -> None:
    assert fresh_python(DROPPED)[0] == "True"


# --- in the place of Python's comparison ----------------------------------------------------------------------


def python_of(guards: Guards) -> Any:
    assert guards._quick is not None
    return guards._quick.by_python


def compare_words(guards: Guards, comparer: Comparer) -> None:
    assert guards._quick is not None
    guards._quick.compare_words(comparer)


def are_words(guards: Guards) -> bool:
    return guards.holds is not python_of(guards) and guards.holds != guards.again


def by_words(guards: Guards, comparer: Comparer) -> Any:
    compare_words(guards, comparer)
    assert are_words(guards)
    return guards.holds


def alone(function_of_guards: Any) -> bool:
    """What one of the two says, without asking for values."""
    if not hasattr(function_of_guards, "__globals__"):
        plan, _, held = function_of_guards.__self__
        comparer = words.background.comparer()
        assert comparer is not None
        words_of = Words(comparer)
        words_of.held = held
        return words_of._function(plan, _no)()
    again = function_of_guards.__globals__["again"]
    function_of_guards.__globals__["again"] = lambda: False
    try:
        return bool(function_of_guards())
    finally:
        function_of_guards.__globals__["again"] = again


@settings(max_examples=60, deadline=None)
@given(
    attributes=st.dictionaries(st.sampled_from("abc"), contents, min_size=1),
    changes=st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abc"), contents), max_size=8),
)
def test_words_say_what_python_says(attributes: dict[str, Any], changes: Any) -> None:
    comparer = words.background.comparer()
    assert comparer is not None
    thing = Thing()
    vars(thing).update(attributes)
    guards = walked(lambda: [getattr(thing, name) for name in attributes])
    assert guards.holds()
    for name, key, new in [("d", "a", 1), *changes]:  # no program read `d`
        found = by_words(guards, comparer)
        assert alone(found)
        setattr(thing, name, change(getattr(thing, name, None), key, new))
        says_yes = alone(found)
        assert says_yes is alone(python_of(guards))
        differs = guards.first_difference() is not None
        assert not (says_yes and differs)
        if differs:
            return
        assert guards.holds()


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    words.background.compile()


def holder_and_guards() -> tuple[Any, Guards]:
    thing: Any = Thing()
    thing.a, thing.items, thing.empty = 1.0, [2.0, "b"], {}
    return thing, walked(lambda: (thing.a, thing.items, thing.empty))


def test_words_take_over_when_nothing_has_changed_for_a_while() -> None:
    thing, guards = holder_and_guards()
    assert all(guards.holds() for _ in range(2 * quick._YOUNG)) and are_words(guards)
    thing.a = float("1")
    assert guards.holds() and guards.holds is python_of(guards)
    assert all(guards.holds() for _ in range(2 * quick._YOUNG)) and are_words(guards)
    thing.items.append(3.0)
    assert not guards.holds() and str(guards.what) == "length of thing.items: 3, recorded with 2"


@pytest.mark.parametrize("what", ["a", "items", "empty"])
def test_what_another_thread_writes_while_words_are_noted_is_not_lost(
    what: str, comparer: Comparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    thing, guards = holder_and_guards()
    assert guards.holds()
    changes: dict[str, Change] = {
        "a": lambda: setattr(thing, "a", 2.0),
        "items": lambda: thing.items.append(3.0),
        "empty": lambda: thing.empty.update(b=1.0),
    }
    address = Words._address
    writes = [changes[what]]

    def interrupted(self: Words, value: Any) -> int:
        while writes:
            writes.pop()()
        return address(self, value)

    monkeypatch.setattr(Words, "_address", interrupted)
    compare_words(guards, comparer)
    assert not writes and not guards.holds()


def test_what_could_not_be_noted_for_a_change_elsewhere_is_noted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    _, guards = holder_and_guards()
    check_of = Words.check
    disturbed = [True, True]
    monkeypatch.setattr(Words, "check", lambda self, otherwise: None if disturbed.pop() else check_of(self, otherwise))
    disturbed.insert(0, False)
    assert all(guards.holds() for _ in range(2 * quick._YOUNG)) and not are_words(guards)
    assert all(guards.holds() for _ in range(40 * quick._YOUNG)) and are_words(guards)


def test_bases_that_were_put_back_are_the_same(comparer: Comparer) -> None:
    one, two = type("One", (), {}), type("Two", (), {})
    heir: Any = type("Heir", (one,), {"scale": 2.0})
    thing = heir()
    guards = walked(lambda: thing.scale)
    assert guards.holds()
    heir.__bases__ = (two,)
    assert not guards.holds()
    heir.__bases__ = (one,)
    assert guards.holds()
    by_words(guards, comparer)
    assert guards.holds()
    heir.__bases__ = (two,)
    assert not guards.holds()


WORLD: dict[str, Any] = {}  # where the garbage collector sees who refers to it


@pytest.mark.parametrize("is_native", [True, False])
def test_guards_that_were_checked_often_keep_nothing_alive(is_native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "background", words.background if is_native else _without())
    thing: Any = Thing()
    thing.inner = Thing()
    thing.inner.scale = 2.0
    thing.seen = weakref.ref(thing.inner)
    monkeypatch.setitem(WORLD, "thing", thing)
    guards = walked(lambda: (WORLD["thing"].inner.scale, WORLD["thing"].seen() is None))
    assert all(guards.holds() for _ in range(2 * quick._YOUNG))
    assert are_words(guards) is is_native and guards._quick is not None and guards._quick._held
    assert not guards.keeps_alive(())
    del thing.inner
    assert guards.keeps_alive(())


def _without() -> Background:
    made = Background()
    made.is_done = True
    return made


# --- compiled in the background -------------------------------------------------------------------------------


def test_nobody_waits_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "background", background := Background())
    _, guards = holder_and_guards()
    assert all(guards.holds() for _ in range(quick._YOUNG + 1)) and guards.holds is python_of(guards)
    end = time.monotonic() + 60
    while not background.is_done and time.monotonic() < end:
        time.sleep(0.01)
    assert background.is_done
    assert all(guards.holds() for _ in range(quick._YOUNG)) and are_words(guards)


@pytest.mark.parametrize("compiler", [None, "/bin/false"])
def test_without_a_compiler_python_compares(compiler: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeplay.codegen.library.find_c_compiler", lambda: compiler)
    background = Background()
    background.compile()
    assert background.is_done and background.comparer() is None
    monkeypatch.setattr(quick, "background", background)
    thing, guards = holder_and_guards()
    assert all(guards.holds() for _ in range(3 * quick._YOUNG)) and guards.holds is python_of(guards)
    thing.items[0] = 3.0
    assert not guards.holds()


def test_a_python_that_is_not_known_has_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeplay.guards.check.object_layout.is_known_python", lambda: False)
    assert ObjectLayout.of_this_python() is None and Comparer.compiled() is None


def test_a_layout_that_is_not_clear_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeplay.guards.check.object_layout._words_of", lambda value: [id(value)] * 8)
    assert ObjectLayout.of_this_python() is None


def test_a_forked_child_compiles_for_itself() -> None:
    background = Background()
    background._thread = object()  # type: ignore[assignment]
    assert background.comparer() is None and not background.is_done
    background.renew()
    assert background.comparer() is None
    thread = background._thread
    assert thread is not None
    thread.join(60)
    assert background.is_done
