"""Entries by key: the least recently used goes first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from treeplay.trace.survey.found import Survey
from treeplay.tree.decide import KeyPhase
from treeplay.tree.table import Entry, EntryTable, Observation, Recording


def recording(name: str = "") -> Recording:
    nothing: Any = None
    signature: Any = SimpleNamespace(guarded=None)
    return Recording(nothing, signature, nothing, "aten", 0, name, {}, nothing, lambda: None)


def used(table: EntryTable, *keys: str) -> None:
    for key in keys:
        if table.get(key) is None:
            table.put(key, Entry({"x": key}))


def test_an_entry_is_new_and_is_found_by_its_key() -> None:
    table, first = EntryTable(), Entry({"x": "1"})
    assert table.get("a") is None and not len(table)
    table.put("a", first)
    assert table.get("a") is first and table.holds(first)
    assert (first.phase, first.label, len(table)) == (KeyPhase.NEW, "x=1", 1)
    assert Entry({}).label == "no arguments"


def test_the_least_recently_used_entry_is_dropped() -> None:
    table = EntryTable()
    used(table, "a", "b", "c", "a", "d")
    assert [entry.label for entry in table.evict(2)] == ["x=b", "x=c"]
    assert [entry.label for entry in table] == ["x=a", "x=d"]


def test_recordings_count_against_the_limit_and_the_newest_entry_stays() -> None:
    table = EntryTable()
    used(table, "a", "b")
    for entry in table:
        entry.recordings += [recording("1"), recording("2")]
    assert [entry.label for entry in table.evict(3)] == ["x=a"]
    assert table.recordings == 2
    assert not table.evict(1) and [r.source for r in next(iter(table)).recordings] == ["2"]


def test_the_calls_of_a_recording_that_is_taken_out_count_on() -> None:
    table, mine = EntryTable(), recording()
    used(table, "a")
    (entry,) = table
    entry.recordings.append(mine)
    entry.eager_calls["observed"], mine.calls = 2, 5
    table.take_out(entry, mine)
    assert entry.recordings == [] and mine.is_dropped and entry.calls == 7
    table.take_out(entry, mine)
    assert entry.calls == 7


def test_the_calls_of_recordings_that_are_let_go_or_are_too_many_count_on() -> None:
    table = EntryTable()
    used(table, "a")
    (entry,) = table
    alive: Any = SimpleNamespace(keeps_alive=lambda _: True, forget=lambda: None)
    for calls in (3, 5, 11):
        made = recording()
        made.calls = calls
        entry.recordings.append(made)
    table.evict(2)
    assert (entry.calls, len(entry.recordings)) == (19, 2)
    entry.recordings[0].signature = SimpleNamespace(guarded=alive)  # type: ignore[assignment]
    assert [gone.calls for gone in table.let_go(lambda _: "")] == [5]
    assert (entry.calls, len(entry.recordings)) == (19, 1)


def test_recordings_that_hold_the_same_object_are_asked_together() -> None:
    table, asked = EntryTable(), []

    def keeps_alive(every: Any) -> bool:
        asked.append(len(every))
        return len(every) == 2

    used(table, "a")
    (entry,) = table
    entry.recordings += [recording(), recording()]
    for made in entry.recordings:
        guards: Any = SimpleNamespace(keeps_alive=keeps_alive, forget=lambda: None)
        made.signature = SimpleNamespace(guarded=guards)  # type: ignore[assignment]
    assert len(table.let_go(lambda _: "")) == 2
    assert asked == [2, 2]


def test_an_observation_fits_as_long_as_its_values_hold() -> None:
    entry, options = Entry({}), {"scale": 1}
    from treeplay.trace.survey.program import survey

    entry.observations.append(Observation([], survey(lambda: options["scale"])))
    assert entry.observation() is entry.observations[0]
    options["scale"] = 2
    assert entry.observation() is None
    entry.observations.append(Observation([], Survey()))
    assert entry.observation() is entry.observations[1]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.sampled_from("abcdefgh"), max_size=30), st.integers(1, 5))
def test_what_is_left_is_what_was_used_last(keys: list[str], most: int) -> None:
    table = EntryTable()
    for key in keys:
        used(table, key)
        table.evict(most)
    latest = list(dict.fromkeys(reversed(keys)))[:most]
    assert [entry.label for entry in table] == [f"x={key}" for key in reversed(latest)]
