"""Many recordings of a GPU and room for few: the most used are launched, the others run as they are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same
from support.taped_gpu import capture_on_tape, capture_on_the_cpu
from treeplay.device.cuda import recording
from treeplay.device.cuda.captured import CapturedGraph
from treeplay.device.protocol import Recorded, Work

BYTES = 100  # of each graph


def capture(work: Work, tensors: Sequence[torch.Tensor], lane: Any, *others: Any) -> CapturedGraph:
    captured = capture_on_tape(work, tensors, lane, *others)
    captured.exec_bytes = BYTES
    lane.hold(captured)
    return captured


class Program:
    """What a call function does with one recording."""

    def __init__(self, gpu: Any, factor: float) -> None:
        self.factor = factor
        self.work = Work("times", lambda tensors, numbers: self.body(tensors), self.body)
        self.recorded: Recorded = gpu.record(self.work)
        self.run = self.recorded.replay
        self.recorded.subscribe(lambda replay, is_boxed: setattr(self, "run", replay))

    def body(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return (tensors[0] * self.factor - 1,)

    def call(self, number: int) -> None:
        x = torch.full((3,), float(number))
        (found,) = self.run([x], ())
        assert_same(found, x * self.factor - 1)

    @property
    def launches(self) -> int:
        return self.recorded.facts().launches


def test_Tplus7_of_fifty_with_room_for_five_the_five_most_used_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, chance = capture_on_the_cpu(monkeypatch), random.Random(7)
    monkeypatch.setattr(recording, "capture_work", capture)
    programs = [Program(gpu, 1.5 + number) for number in range(50)]
    often = [3, 14, 15, 35, 48]
    calls = [*range(50), *(often * 20)] * 12
    chance.shuffle(calls)
    with treeplay.settings.changed(memory_budget_bytes=5 * BYTES):
        for number, which in enumerate(calls):
            programs[which].call(number)
            assert gpu.lane.held_bytes() <= 5 * BYTES
        for which in often:
            programs[which].call(0)
        before = [program.launches for program in programs]
        for which in range(50):
            programs[which].call(which)
        launched = [which for which in range(50) if programs[which].launches > before[which]]
    assert launched == often
    facts = [program.recorded.facts() for program in programs]
    assert sum(one.launches for one in facts) > len(calls) / 2
    dropped = sum(one.evictions for one in facts)
    assert dropped == treeplay.observe.counters["recordings dropped"]["memory"]
    assert sum(one.captures for one in facts) == dropped + 5 < 150
    others = sum((program.recorded.plain_calls for program in programs), Counter[str]())
    assert others.keys() == {"warm-up", "over the memory budget"}
