"""Rows G1 and G2: what needs no CUDA asks nothing of it; who is capturing."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch

import treeplay
from support.interpreters import FreshPython
from support.recordings import another_stream, record
from treeplay.graphs import Graph, graph, is_current_stream_capturing

WITHOUT_CUDA = """
import treeplay
from treeplay.graphs import Graph, graph_pool_handle, is_current_stream_capturing
assert is_current_stream_capturing() is False
recording = Graph(device="cuda")
for attempt in (recording.capture_begin, lambda: treeplay.graphs.graph(recording).__enter__()):
    try:
        attempt()
    except RuntimeError as error:
        assert "CUDA" in str(error) and isinstance(error, treeplay.UsageError), error
    else:
        raise SystemExit("no error")
print(Graph().device, "empty" in repr(recording))
"""

WITH_CUDA = """
import torch, treeplay
from treeplay.graphs import Graph, graph_pool_handle, is_current_stream_capturing
for package in (treeplay, treeplay.graphs):
    for name in package.__all__:
        repr(getattr(package, name))
graph_pool_handle()
assert is_current_stream_capturing() is False
Graph(device="cuda")
print(torch.cuda.is_initialized())
"""


def test_G1_nothing_is_needed_before_the_call_that_needs_it(fresh_python: FreshPython) -> None:
    assert fresh_python(WITHOUT_CUDA, CUDA_VISIBLE_DEVICES="")[0] == "cpu True"


def test_G1_G2_importing_and_asking_creates_no_context(fresh_python: FreshPython) -> None:
    assert fresh_python(WITH_CUDA)[0] == "False"


def test_G2_capturing_is_true_between_begin_and_end_only(dev: str, x: torch.Tensor) -> None:
    assert is_current_stream_capturing() is False
    _, seen = record(dev, lambda: (x + 1, is_current_stream_capturing())[1])
    assert seen is True and is_current_stream_capturing() is False
    with pytest.raises(KeyError), graph(Graph(device=dev)):
        raise KeyError("k")
    assert is_current_stream_capturing() is False


def test_G2_between_the_low_level_begin_and_end_too(dev: str, x: torch.Tensor) -> None:
    recording, seen = Graph(device=dev), [is_current_stream_capturing()]
    with torch.cuda.stream(torch.cuda.Stream()) if dev == "cuda" else contextlib.nullcontext():
        recording.capture_begin()
        x + 1
        seen.append(is_current_stream_capturing())
        recording.capture_end()
        seen.append(is_current_stream_capturing())
    assert seen == [False, True, False] and all(type(answer) is bool for answer in seen)


def test_G2_a_capture_that_fails_is_over(dev: str, x: torch.Tensor) -> None:
    with pytest.raises(treeplay.CaptureFailed), graph(Graph(device=dev)):
        (x + 1).sum().item()
    assert is_current_stream_capturing() is False


def test_G2_another_thread_is_not_capturing(dev: str, x: torch.Tensor) -> None:
    seen: list[bool] = []

    def body() -> torch.Tensor:
        thread = threading.Thread(target=lambda: seen.append(is_current_stream_capturing()))
        thread.start()
        thread.join()
        return x + 1

    record(dev, body, capture_error_mode="thread_local")
    assert seen == [False]


def test_G2_another_stream_is_not_capturing(cuda: str) -> None:
    x = torch.ones(3, device=cuda)

    def body() -> bool:
        x + 1
        with torch.cuda.stream(another_stream()):
            return is_current_stream_capturing()

    assert record(cuda, body)[1] is False


def test_the_package_names_the_explicit_api() -> None:
    assert treeplay.graphs.Graph is Graph
