"""Row G4: which call is legal in which phase, and that a refused call changes nothing."""

from __future__ import annotations

import warnings

import pytest
import torch

from support.recordings import record
from treeplay import UsageError
from treeplay.graphs import Graph, graph

NEEDS_READY = ("replay", "pool", "instantiate", "raw_cuda_graph", "raw_cuda_graph_exec")


@pytest.mark.parametrize("call", NEEDS_READY)
def test_G4_an_empty_recording_refuses_what_needs_one(dev: str, call: str) -> None:
    with pytest.raises(UsageError, match=rf"{call}\(\) needs a recording that is ready, and this one is empty"):
        getattr(Graph(device=dev), call)()


def test_G4_an_empty_recording_cannot_be_ended_or_dumped(dev: str, tmp_path: object) -> None:
    recording = Graph(device=dev)
    with pytest.raises(UsageError, match="capturing, and this one is empty"):
        recording.capture_end()
    with pytest.raises(UsageError, match="ready, and this one is empty"):
        recording.debug_dump(f"{tmp_path}/x.dot")
    recording.reset()  # legal


def test_G4_a_ready_recording_refuses_to_begin_again_and_still_replays(dev: str, x: torch.Tensor) -> None:
    recording, y = record(dev, lambda: x + 1)
    for attempt in (recording.capture_begin, graph(recording).__enter__):
        with pytest.raises(UsageError, match=r"empty, and this one is ready.*reset"):
            attempt()
    with pytest.raises(UsageError, match="capturing, and this one is ready"):
        recording.capture_end()
    recording.replay()
    assert float(y.sum()) == 2000


def test_G4_a_failed_recording_needs_a_reset(dev: str, x: torch.Tensor) -> None:
    recording = Graph(device=dev)
    with pytest.raises(KeyError), graph(recording):
        raise KeyError("k")
    for call in (*NEEDS_READY, "capture_begin", "capture_end"):
        with pytest.raises(UsageError, match="this one is failed"):
            getattr(recording, call)()
    recording.reset()
    with graph(recording):
        y = x + 1
    recording.replay()
    assert float(y.sum()) == 2000


def test_G4_an_empty_capture_warns_once_and_replays_as_nothing(dev: str) -> None:
    recording = Graph(device=dev)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with graph(recording):
            pass
    assert ["empty" in str(warning.message) for warning in caught] == [True]
    assert dev == "cuda" or caught[0].filename == __file__
    assert recording.replay() is None


def test_G4_G11_a_recording_is_not_reset_while_it_captures(dev: str, x: torch.Tensor) -> None:
    recording = Graph(device=dev)
    with graph(recording):
        y = x + 1
        with pytest.raises(UsageError, match=r"reset\(\) needs .* this one is capturing: end the capture first"):
            recording.reset()
    recording.replay()
    assert float(y.sum()) == 2000


def test_begin_and_end_without_the_context_manager(dev: str, x: torch.Tensor) -> None:
    recording = Graph(device=dev)
    if dev == "cuda":
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            recording.capture_begin()
            y = x * 2
            recording.capture_end()
    else:
        recording.capture_begin()
        y = x * 2
        recording.capture_end()
    x.fill_(4)
    recording.replay()
    assert float(y.sum()) == 8000


def test_keep_graph_leaves_the_launchable_form_to_the_caller(cuda: str) -> None:
    x, recording = torch.ones(3, device=cuda), Graph(keep_graph=True, device=cuda)
    with graph(recording):
        y = x + 1
    assert recording.raw_cuda_graph() != 0
    with pytest.raises(RuntimeError):
        recording.raw_cuda_graph_exec()
    recording.instantiate()
    assert recording.raw_cuda_graph_exec() != 0
    recording.replay()
    assert y.tolist() == [2.0] * 3


def test_raw_graphs_are_for_those_who_keep_them(dev: str, x: torch.Tensor) -> None:
    recording, _ = record(dev, lambda: x + 1)
    with pytest.raises(UsageError, match="keep_graph=True"):
        recording.raw_cuda_graph()
    with pytest.raises(UsageError, match="keep_graph=True"):
        recording.instantiate()
