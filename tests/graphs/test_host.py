"""Row G3: what the recorder on the CPU keeps and what it refuses. Its inner workings: tests/device/test_recorder.py."""

from __future__ import annotations

import pytest
import torch

from support.recordings import record
from treeplay import ArgumentError, CaptureFailed, UsageError
from treeplay.graphs import Graph, graph


def test_G3_views_stay_views_of_what_is_recomputed() -> None:
    x = torch.ones(4)
    recording, (y, v) = record("cpu", lambda: ((y := x * 2), y[1:]))
    x.fill_(3)
    recording.replay()
    assert v.data_ptr() == y.data_ptr() + 4
    assert y.tolist() == [6.0] * 4 and v.tolist() == [6.0] * 3


def test_G3_a_host_read_breaks_the_capture_and_the_recording_until_reset() -> None:
    x, recording = torch.ones(4), Graph(device="cpu")
    with pytest.raises(CaptureFailed, match="item: reads a tensor's value") as failure, graph(recording):
        x.sum().item()
    assert failure.value.op == "item"
    assert failure.value.where is not None and failure.value.where.source == "x.sum().item()"
    with pytest.raises(UsageError, match=r"replay\(\) needs a recording that is ready, and this one is failed"):
        recording.replay()
    recording.reset()
    with graph(recording):
        y = x + 1
    recording.replay()
    assert y.tolist() == [2.0] * 4


def test_G3_a_stream_means_nothing_on_the_cpu() -> None:
    with pytest.raises(ArgumentError, match="stream"), graph(Graph(device="cpu"), stream=object()):
        pass


def test_G3_a_tensor_of_another_device_is_refused_with_both_names() -> None:
    with pytest.raises(CaptureFailed, match=r"works on a tensor of meta, and the capture is of cpu") as failure:
        record("cpu", lambda: torch.ones(3, device="meta") + 1)
    assert failure.value.advice == "move the tensor to the CPU"  # nothing can be captured on meta


@pytest.mark.parametrize("device", ["meta", "cpuu", object()])
def test_a_device_that_nothing_records_on_is_refused(device: str) -> None:
    with pytest.raises(ArgumentError, match="device: expected a CUDA device or the CPU, found"):
        Graph(device=device)
