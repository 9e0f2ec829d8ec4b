"""Rows G12, G+5 and G+9: what a recording can show and tell of itself."""

from __future__ import annotations

import re
import sys
import tracemalloc
import warnings
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch

from support.recordings import another_stream, record
from treeplay import UsageError
from treeplay.graphs import Graph, graph


def forks(x: torch.Tensor) -> torch.Tensor:
    a = x * 2
    if x.is_cuda:
        main, side = torch.cuda.current_stream(), another_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            b = x - 1
        c = a + 5
        main.wait_stream(side)
        return c - b
    b = x - 1
    return (a + 5) - b


def test_G12_a_dump_shows_nodes_and_both_branches(dev: str, x: torch.Tensor, tmp_path: Path) -> None:
    recording = Graph(device=dev)
    recording.enable_debug_mode()
    with graph(recording):
        forks(x)
    recording.debug_dump(str(tmp_path / "recording.dot"))
    text = (tmp_path / "recording.dot").read_text()
    # On CUDA the second branch waits for the first operation too: that is what `wait_stream` says.
    assert text.startswith("digraph") and text.count("->") == (4 if dev == "cuda" else 3)
    edges = re.findall(r'"?([\w:]+)"?\s*->\s*"?([\w:]+)"?', text)
    (joined,) = {to for _, to in edges} - {start for start, _ in edges}
    branches = sorted(start for start, to in edges if to == joined)
    assert len(branches) == 2 and tuple(branches) not in edges and (branches[1], branches[0]) not in edges
    recording.replay()


def test_G12_a_dump_must_be_asked_for_before(dev: str, x: torch.Tensor, tmp_path: Path) -> None:
    recording, _ = record(dev, lambda: x + 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recording.debug_dump(tmp_path / "recording.dot")
    assert len(caught) == 1 and caught[0].filename == __file__ and not list(tmp_path.iterdir())


def test_G12_a_missing_folder_is_named(dev: str, x: torch.Tensor, tmp_path: Path) -> None:
    recording = Graph(device=dev)
    recording.enable_debug_mode()
    with graph(recording):
        x + 1
    with pytest.raises(OSError, match="nowhere"):
        recording.debug_dump(tmp_path / "nowhere" / "recording.dot")
    (tmp_path / "a folder").mkdir()
    with pytest.raises(OSError, match="a folder"):
        recording.debug_dump(tmp_path / "a folder")


def test_Gplus5_a_freed_input_is_told_with_its_lines(dev: str) -> None:
    tracemalloc.start(8)
    try:
        t = torch.ones(1000, device=dev)  # made here
        recording = Graph(device=dev, checks_inputs=True)
        with graph(recording):
            y = t[2:] + 1  # used here
        recording.replay()
        assert float(y.sum()) == 1996
        del t  # freed here
        with pytest.raises(UsageError, match=r"freed before the replay: float32\[1000\]") as failure:
            recording.replay()
    finally:
        tracemalloc.stop()
    lines = [line for line in str(failure.value).splitlines() if __file__ in line]
    numbers = [int(line.split(__file__ + ":")[1].split(" ")[0].strip(",")) for line in lines]
    sources = [Path(__file__).read_text().splitlines()[number - 1] for number in numbers]
    made = ["made here"] if sys.version_info >= (3, 12) else []  # 3.11 finds no trace of objects with a dict
    assert [source.rpartition("# ")[2] for source in sources] == [*made, "used here", "freed here"]


def test_Gplus5_a_view_that_lives_keeps_the_memory(dev: str) -> None:
    t = torch.ones(1000, device=dev)
    recording = Graph(device=dev, checks_inputs=True)
    with graph(recording):
        y = t + 1
    view = t[5:]
    del t
    recording.replay()
    assert float(y.sum()) == 2000
    del view
    with pytest.raises(UsageError, match="start `tracemalloc`"):
        recording.replay()


def test_Gplus5_without_the_option_nothing_is_noted_and_a_replay_asks_nothing(dev: str) -> None:
    t = torch.ones(1000, device=dev)
    recording = Graph(device=dev)
    with graph(recording):
        y = t + 1
    assert recording._inputs is None
    del t
    recording.replay()
    assert y.shape == (1000,)


def test_Gplus5_what_the_body_made_and_freed_is_no_input(dev: str, x: torch.Tensor) -> None:
    recording = Graph(device=dev, checks_inputs=True)
    with graph(recording):
        a = x + 1
        b = a * 2
        del a
    recording.replay()
    assert float(b.sum()) == 4000


def test_Gplus9_a_recording_tells_its_facts(dev: str, x: torch.Tensor) -> None:
    recording, _ = record(dev, lambda: (x + 1, torch.zeros(5, device=dev)))
    for _ in range(3):
        recording.replay()
    facts = recording.statistics()
    assert (facts.replays, facts.phase, facts.device) == (3, "ready", "cuda:0" if dev == "cuda" else "cpu")
    assert facts.node_count == 2 and facts.pool_bytes > 0 and facts.exec_bytes >= 0
    assert facts.capture_seconds > 0 and facts.launch_seconds > 0
    assert len(str(facts).splitlines()) == 1
    with pytest.raises(FrozenInstanceError):
        facts.replays = 4


def test_Gplus9_an_empty_recording_has_facts_too(dev: str) -> None:
    facts = Graph(device=dev).statistics()
    assert (facts.phase, facts.nodes, facts.replays) == ("empty", None, 0)
    assert len(str(facts).splitlines()) == 1


def test_Gplus9_a_pool_is_counted_as_a_whole(dev: str) -> None:
    x = torch.ones(1 << 20, device=dev)
    first, y = record(dev, lambda: x + 1)
    second, z = record(dev, lambda: x + 2, pool=first.pool())
    assert first.statistics().pool_bytes == second.statistics().pool_bytes >= 2 * y.nbytes
    del z
