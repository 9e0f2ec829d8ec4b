"""Replays leave the GPU's memory as it is, and a program that is dropped gives its memory back."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from torch import nn

from support import jit, training

pytestmark = pytest.mark.gpu

REPLAYS = 10_000
WIDTH = 64
Batch = tuple[torch.Tensor, ...]


def make_net() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).cuda()


def inference(lower: str) -> tuple[Any, list[Batch]]:
    return jit(make_net().eval().requires_grad_(False), lower=lower), [batch(1) for _ in range(3)]


def training_step(lower: str) -> tuple[Any, list[Batch]]:
    net = make_net()
    step = training(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
    return jit(step, lower=lower), [batch(2) for _ in range(3)]


def batch(count: int) -> Batch:
    return tuple(torch.randn(8, WIDTH, device="cuda") for _ in range(count))


def in_use() -> tuple[int, int]:
    """Bytes allocated and reserved."""
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def in_use_without_caches() -> tuple[int, int]:
    """The same, with everything collected and given back that can be."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return in_use()


def replay(program: Any, batches: list[Batch], calls: int) -> None:
    """Calls with inputs that rotate and the last two results alive."""
    kept: deque[torch.Tensor] = deque(maxlen=2)
    for one in islice(cycle(batches), calls):
        kept.append(program(*one))


@pytest.mark.parametrize("lower", ["aten", "inductor"])
@pytest.mark.parametrize("make", [inference, training_step])
def test_ten_thousand_replays_leave_memory_flat(make: Callable[[str], Any], lower: str) -> None:
    program, batches = make(lower)
    replay(program, batches, 50)
    before = in_use()
    replay(program, batches, REPLAYS)
    assert in_use() == before
    (recording,) = program.statistics().keys[0].recordings
    assert recording.launch.stage == "recorded" and recording.launch.launches == recording.replays >= REPLAYS


@pytest.mark.parametrize("lower", ["aten", "inductor"])
@pytest.mark.parametrize("make", [inference, training_step])
def test_no_replay_copies_anything(make: Callable[[str], Any], lower: str) -> None:
    program, batches = make(lower)
    replay(program, batches, 10)
    (recording,) = program.statistics().keys[0].recordings
    assert recording.launch.stage == "recorded"
    # A loss that is reduced in the graph's own memory is read out of it: so many bytes.
    assert recording.launch.copied_bytes_per_call in ((0, 4) if lower == "aten" and make is training_step else (0,))
    assert [name for name, policy in recording.launch.policy.items() if policy.startswith("copied")] == []


@pytest.mark.parametrize("make", [inference, training_step])
def test_a_dropped_program_gives_its_memory_back(make: Callable[[str], Any]) -> None:
    replay(*make("aten"), 10)  # what libraries keep for themselves is made here
    before = in_use_without_caches()
    for _ in range(5):
        program, batches = make("aten")
        replay(program, batches, 10)
        del program, batches
    assert in_use_without_caches() == before


def test_reset_gives_recordings_back_and_the_next_calls_record_anew() -> None:
    program, batches = training_step("aten")
    replay(program, batches, 10)
    program.reset()
    before = in_use_without_caches()
    for _ in range(5):
        replay(program, batches, 10)
        assert program.statistics().recordings > 0
        program.reset()
    assert in_use_without_caches() == before
