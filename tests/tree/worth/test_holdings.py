"""What recordings on the CPU hold together stays within the budget, and those that save most stay."""

from __future__ import annotations

import random
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same, jit
from treeplay.tree.answers import EVICTED
from treeplay.tree.worth import holdings as module
from treeplay.tree.worth.holdings import Holdings

pytestmark = [pytest.mark.programs, pytest.mark.filterwarnings("ignore:treeplay runs")]


@pytest.fixture(autouse=True)
def holdings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdings]:
    """One that counts nothing of other tests."""
    made = Holdings()
    for user in ("treeplay.tree.worth.holdings", "treeplay.tree.cold", "treeplay.tree.recording"):
        monkeypatch.setattr(f"{user}.holdings", made)
    yield made


def program(x: torch.Tensor) -> torch.Tensor:
    return (x * 3 - 1).cumsum(0) / 2


def looked_at(jitted: Any) -> Any:
    """One whose calls are all looked at."""
    jitted._manager.cache.leave_alone = lambda *_, **__: None
    return jitted


def bytes_of(jitted: Any) -> list[int]:
    return [recording.scratch_bytes for key in jitted.statistics().keys for recording in key.recordings]


def call(jitted: Any, size: int, times: int = 1) -> None:
    for number in range(times):
        x = torch.arange(float(size)) + number
        assert_same(jitted(x), program(x))


def test_Tplus7_of_fifty_sizes_with_room_for_five_the_five_most_used_replay(holdings: Holdings) -> None:
    jitted, chance, first = looked_at(jit(program, on_refusal="eager")), random.Random(7), jit(program)
    call(first, 1009, 2)
    (each,) = bytes_of(first)
    del first
    sizes = range(960, 1010)  # of which none takes more than this, and each about as much
    often = [961, 973, 985, 997, 1005]
    calls = [*sizes, *(often * 20)] * 12
    chance.shuffle(calls)
    with treeplay.settings.changed(memory_budget_bytes=5 * each + 100):
        for size in calls:
            call(jitted, size)
            assert holdings.nbytes() == sum(bytes_of(jitted)) <= 5 * each + 100
        before = replays_by_size(jitted)
        assert set(before) == set(often), jitted.explain()
        for size in often:
            call(jitted, size, 3)
        assert replays_by_size(jitted) == {size: count + 3 for size, count in before.items()}
    found = jitted.statistics()
    assert found.dropped == treeplay.observe.counters["recordings dropped"]["memory"] == found.recordings - 5
    assert found.recordings < 120 and found.replays > found.calls / 2 and found.not_replayed[EVICTED] > 0


def replays_by_size(jitted: Any) -> Counter[int]:
    keys = jitted.statistics().keys
    return Counter(
        {int(key.arguments.split("[")[-1][:-1]): key.recordings[0].replays for key in keys if key.recordings}
    )


def test_the_newest_stays_even_if_it_alone_is_too_large(holdings: Holdings) -> None:
    jitted = looked_at(jit(program))
    with treeplay.settings.changed(memory_budget_bytes=1):
        for size in (100, 200):
            call(jitted, size, 3)
    assert bytes_of(jitted) == [holdings.nbytes()] and replays_by_size(jitted) == {200: 2}
    assert f"1 {EVICTED}" not in jitted.explain() and EVICTED in jitted.explain()


def test_all_programs_share_the_budget(holdings: Holdings) -> None:
    first, second = looked_at(jit(program)), looked_at(jit(program))
    call(first, 1000, 3)
    (each,) = bytes_of(first)
    with treeplay.settings.changed(memory_budget_bytes=each + 100):
        call(second, 1000, 6)
        assert bytes_of(first) == [] and len(bytes_of(second)) == 1
        call(first, 1000, 2)  # no more than the other
        assert bytes_of(first) == [] and first.statistics().not_replayed == {"observed": 1, EVICTED: 2}
        call(first, 1000, 20)
        assert bytes_of(second) == [] and len(bytes_of(first)) == 1
        call(first, 1000, 5)
    assert first.statistics().recordings == 2


def test_Tplus7_one_that_is_being_launched_does_not_go(holdings: Holdings) -> None:
    first, second = looked_at(jit(program)), looked_at(jit(program))
    call(first, 1000, 3)
    (each,) = bytes_of(first)
    lock, taken, done = first._manager.gate.lock, threading.Event(), threading.Event()

    def launch() -> None:
        with lock:
            taken.set()
            assert done.wait(30)

    thread = threading.Thread(target=launch)
    thread.start()
    assert taken.wait(30)
    with treeplay.settings.changed(memory_budget_bytes=each + 100):
        call(second, 1000, 3)
        done.set()
        thread.join()
        assert len(bytes_of(first)) == len(bytes_of(second)) == 1
        call(second, 900, 3)
    assert bytes_of(first) == [] and len(bytes_of(second)) == 1


def test_what_is_dropped_counts_no_more_and_is_kept_by_nobody(holdings: Holdings) -> None:
    jitted, other = looked_at(jit(program)), looked_at(jit(program))
    call(jitted, 1000, 3)
    call(other, 1000, 3)
    other.reset()
    assert holdings.nbytes() == sum(bytes_of(jitted)) > 0
    recording = jitted._manager.cache.last
    arena = weakref.ref(recording.call.__globals__["run"].__globals__["arena"])
    assert arena() is not None
    del jitted, recording
    assert holdings.nbytes() == 0 and arena() is None


def test_at_most_a_quarter_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_machine_bytes", lambda: 4000)
    assert module.limit() == 1000
    with treeplay.settings.changed(memory_budget_bytes=10):
        assert module.limit() == 10


def test_tapes_count_too(holdings: Holdings) -> None:
    jitted = looked_at(jit(program, lower="capture"))
    call(jitted, 1000, 4)
    assert holdings.nbytes() == sum(bytes_of(jitted)) > 0
