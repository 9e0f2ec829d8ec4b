"""Functions on a walk: closures, defaults, attributes, and what binds or wraps a function."""

from __future__ import annotations

import functools
import gc
import types
import weakref
from typing import Any

from support.reached import Holder, functions, labels, reached
from treeplay.guards.reads.reads import Reads
from treeplay.guards.walk.reach import Reach

RATE = 2.0


def test_a_variable_of_a_closure_is_guarded() -> None:
    scale = 2.0
    reach = reached(lambda: scale * 2)
    assert "scale" in labels(reach)
    scale = 3.0
    assert any(asked.label == "scale" and asked.ask() == 3.0 and asked.recorded == 2.0 for asked in reach.asked)


def test_an_attribute_of_a_function_from_text_that_does_not_run_is_guarded() -> None:
    scope: dict[str, Any] = {}
    exec("def settings(): ...\nsettings.rate = 2.0\ndef program(): return settings.rate", scope)
    assert "settings.rate" in labels(reached(scope["program"]))


def test_a_cell_in_a_container_is_guarded() -> None:
    scale = 2.0
    (cell,) = (lambda: scale).__closure__  # type: ignore[misc]
    found = reached(lambda cells: cells[0].cell_contents, [cell])
    scale = 3.0
    assert [(asked.recorded, asked.ask()) for asked in found.asked if asked.label == "argument[0]"] == [(2.0, 3.0)]


def test_defaults_are_entered() -> None:
    holder, other = Holder(a=[1.0]), Holder(a=[2.0])

    def program(first: Any = holder, *, second: Any = other) -> Any:
        return first.a, second.a

    reach = reached(program)
    assert {id(holder.a), id(other.a)} <= {id(items.holder) for items in reach.items}


def test_attributes_of_a_function_are_guarded() -> None:
    def program() -> Any:
        return program.rate  # type: ignore[attr-defined]

    program.rate = 2.0  # type: ignore[attr-defined]
    assert any(place.endswith(".rate") for place in labels(reached(program)))


def test_a_partial_is_guarded_with_its_arguments() -> None:
    def scaled(steps: list[float], *, more: list[float]) -> float:
        return steps[0] * more[0]

    steps, more = [1.0], [2.0]
    reach = reached(functools.partial(scaled, steps, more=more))
    assert {id(steps), id(more)} == {id(items.holder) for items in reach.items} and "scaled" in functions(reach)


def test_a_bound_method_leads_to_its_object() -> None:
    holder = Holder(a=[1.0])
    reach = reached(holder.scaled)
    assert {"self.a", "self.a[0]"} <= labels(reach) and functions(reach) >= {"scaled"}


def test_a_cache_may_grow_and_keeps_what_it_gave() -> None:
    @functools.lru_cache
    def cached(x: int) -> float:
        return x * RATE

    cached(1)
    reach = reached(lambda: cached(1))
    (table,) = [table for table in reach.tables if table.may_grow]
    before = table.content(table.holder)
    cached(2)
    assert table.content(table.holder) == before != {}
    cached.cache_clear()
    assert table.content(table.holder) != before


def test_a_function_without_a_path_that_ran_is_found_all_the_same() -> None:
    def hidden() -> float:
        return RATE

    found = [found for found in gc.get_referrers(hidden.__code__) if isinstance(found, types.FunctionType)]
    ask = found.__iter__().__next__  # an iterator that is used up leads nowhere
    reach = reached(lambda: ask()())
    assert "hidden" in functions(reach)


def test_what_dies_while_a_program_runs_is_no_part_of_it() -> None:
    alive, others = weakref.WeakValueDictionary(), [Holder(a=1.0)]
    alive["first"] = others[0]
    with Reads([]) as reads:
        others.clear()  # whose callback removes it
    reach = Reach(reads).walk([]).dependencies
    assert not alive and not reach.functions and not reach.references
