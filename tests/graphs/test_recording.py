"""Rows G6 to G8 and G11: what a recording leaves as it was, what a replay does, and how long things live."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable

import pytest
import torch

from support.recordings import record, reserved, ten_times
from treeplay import UsageError
from treeplay.graphs import Graph, graph


def rng_states(dev: str) -> list[torch.Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if dev == "cuda" else [])]


def test_G6_recording_changes_nothing_that_was_there(dev: str) -> None:
    x, before = torch.zeros(3, device=dev), rng_states(dev)
    recording, _ = record(dev, lambda: (x.add_(1), torch.rand(2, device=dev)))
    assert x.tolist() == [0.0] * 3
    assert all(map(torch.equal, before, rng_states(dev)))
    for _ in range(3):
        recording.replay()
    assert x.tolist() == [3.0] * 3


def test_G6_a_body_that_raises_changes_nothing_either(dev: str) -> None:
    x, before = torch.zeros(3, device=dev), rng_states(dev)
    with pytest.raises(KeyError), graph(Graph(device=dev)):
        x.add_(1)
        torch.rand(2, device=dev)
        raise KeyError("k")
    assert x.tolist() == [0.0] * 3
    assert all(map(torch.equal, before, rng_states(dev)))


def test_G6_views_and_shared_memory_are_put_back_as_a_whole(dev: str) -> None:
    base = torch.arange(6.0, device=dev)
    left, right = base[:4], base[2:]
    recording, _ = record(dev, lambda: (left.mul_(2), right.add_(1)))
    assert base.tolist() == [0, 1, 2, 3, 4, 5]
    recording.replay()
    assert base.tolist() == [0, 2, 5, 7, 5, 6]


def test_G7_a_replay_redoes_the_work_on_current_contents(dev: str, x: torch.Tensor) -> None:
    calls: list[int] = []

    def body() -> torch.Tensor:
        calls.append(1)
        return ten_times(x)

    recording, y = record(dev, body)
    address = y.data_ptr()
    recording.replay()
    assert float(y.sum()) == 11000
    x.fill_(2)
    recording.replay()
    assert float(y.sum()) == 12000
    assert (calls, y.data_ptr(), y.requires_grad) == ([1], address, False)


def test_G8_in_place_updates_accumulate_in_order(dev: str) -> None:
    s = torch.ones((), device=dev)
    recording, _ = record(dev, lambda: s.mul_(2).add_(1))
    for _ in range(5):
        recording.replay()
    assert float(s) == 63


def test_G8_eager_work_between_replays_is_ordered_with_them(dev: str) -> None:
    s, eager = torch.ones((), device=dev), 1.0
    recording, _ = record(dev, lambda: s.mul_(2).add_(1))
    for step in range(6):
        recording.replay()
        s.add_(step)
        eager = eager * 2 + 1 + step
    assert float(s) == eager


def test_G11_a_reset_recording_records_again_over_tensors_of_its_first_life(dev: str, x: torch.Tensor) -> None:
    recording, y = record(dev, lambda: ten_times(x))
    recording.replay()
    assert float(y.sum()) == 11000
    recording.reset()

    def body() -> torch.Tensor:
        y.fill_(2)
        return ten_times(ten_times(y))

    with graph(recording):
        z = body()
    recording.replay()
    assert float(z.sum()) == 22000


def test_G11_outputs_outlive_their_recording(dev: str, x: torch.Tensor) -> None:
    recording, y = record(dev, lambda: x * 3)
    recording.replay()
    del recording
    gc.collect()
    others = [torch.full((1000,), float("nan"), device=dev) for _ in range(50)]
    assert float(y.sum()) == 3000
    del others


def test_G11_memory_goes_when_the_last_output_dies(cuda: str) -> None:
    x = torch.ones(1 << 20, device=cuda)
    before = reserved()
    recording, y = record(cuda, lambda: ten_times(x))
    recording.replay()
    del recording
    assert float(y[0]) == 11 and torch.cuda.memory_reserved() > before
    del y
    assert reserved() == before


def test_G11_dropping_a_recording_while_it_captures_ends_the_capture(dev: str, x: torch.Tensor) -> None:
    stream = torch.cuda.Stream() if dev == "cuda" else None
    with torch.cuda.stream(stream):
        recording = Graph(device=dev)
        recording.capture_begin()
        x.add_(1)
        del recording
        gc.collect()
    again, y = record(dev, lambda: x + 1)
    again.replay()
    assert float(y.sum()) == 2000


@pytest.mark.parametrize("attempt", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_recording_refuses_to_be_copied_and_stays_as_it_is(
    dev: str, x: torch.Tensor, attempt: Callable[[Graph], object]
) -> None:
    """The copy of an object that holds a recording used to drop the recording when it went."""
    recording, y = record(dev, lambda: x * 2 - 1)
    with pytest.raises(UsageError, match="cannot be copied or pickled"):
        attempt(recording)
    gc.collect()
    recording.replay()
    assert float(y.sum()) == 1000
