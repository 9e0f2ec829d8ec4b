"""More sizes than there is room for on a GPU: the most used are launched, within the budget, and all are right."""

from __future__ import annotations

import gc
import random

import pytest
import torch

import treeplay
from support import assert_alike, jit
from treeplay.device.cuda.lane import lane_of
from treeplay.tree.cache import Cache

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore:treeplay runs")]
SIZES = range(960, 1010)


def program(x: torch.Tensor) -> torch.Tensor:
    return (x * 3 - 1).cumsum(0) / 2


def test_Tplus7_of_fifty_sizes_with_room_for_five_the_five_most_used_are_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The driver takes memory for graphs in large pieces: each counts what it takes on average.
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (2**33, 2**36))
    monkeypatch.setattr(Cache, "leave_alone", lambda *_, **__: None)  # each call is looked at
    treeplay.reset()
    gc.collect()
    jitted, lane, chance = jit(program, on_refusal="eager"), lane_of(torch.device("cuda")), random.Random(7)
    for _ in range(4):
        jitted(torch.ones(SIZES[-1], device="cuda"))
    before = treeplay.observe.counters["recordings dropped"]["memory"]
    (key,) = jitted.statistics().keys
    budget = lane.held_bytes() + 9 * key.recordings[0].launch.exec_bytes // 2
    often = [961, 973, 985, 997, 1005]
    calls = [*SIZES, *(often * 20)] * 6
    chance.shuffle(calls)
    with treeplay.settings.changed(memory_budget_bytes=budget):
        for number, size in enumerate(calls):
            x = torch.arange(float(size), device="cuda") + number % 5
            assert_alike(jitted(x), program(x))
            assert lane.held_bytes() <= budget, number
        for size in often:
            jitted(torch.ones(size, device="cuda"))
        stages = {int(key.arguments.split("[")[-1][:-1]): key.recordings[0].launch for key in jitted.statistics().keys}
    found = jitted.statistics()
    assert [size for size in SIZES if stages[size].stage == "recorded"] == often, jitted.explain()
    assert found.replays > found.calls / 2 and found.captures == found.evictions + 5 < 150
    assert found.evictions == treeplay.observe.counters["recordings dropped"]["memory"] - before > 0
    assert found.not_replayed["over the memory budget"] > 0
