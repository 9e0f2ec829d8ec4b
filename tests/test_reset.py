"""`treeplay.reset()` lets every recording go, of whatever front end; what was returned stays, and all starts over."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import jit
from support.recordings import on_a_tape
from treeplay.backend.account import graph_reports
from treeplay.torch_compile import backend

GPU = pytest.param(
    "cuda",
    marks=pytest.mark.gpu,
)
DEVICES = ["cpu", GPU]


@pytest.fixture(autouse=True)
def without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    torch.compiler.reset()


def held() -> int:
    """Bytes that recordings hold on the GPU, besides tensors."""
    from treeplay.device.cuda.lane import lane_of

    return lane_of(torch.device("cuda", 0)).held_bytes() if torch.cuda.is_available() else 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lower", ["aten", "capture"])
def test_T3_jitted_programs(device: str, lower: str) -> None:
    model = nn.Linear(3, 2).to(device).eval()
    jitted, x = jit(model, lower=lower), torch.randn(4, 3, device=device)
    with torch.no_grad():
        kept = [jitted(x + call) for call in range(4)]
        before = jitted.statistics()
        treeplay.reset()
        assert held() == 0 and jitted.statistics().keys == ()
        for call, result in enumerate(kept):
            torch.testing.assert_close(result, model(x + call))
        for call in range(4):
            torch.testing.assert_close(jitted(x - call), model(x - call))
    after = jitted.statistics()
    assert after.not_replayed == {what: 2 * count for what, count in before.not_replayed.items()}
    assert after.recordings == 2 and after.replays == 2 * before.replays


@pytest.mark.parametrize("device", DEVICES)
def test_results_that_are_yet_to_be_differentiated(device: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
    twin = copy.deepcopy(model)
    jitted = jit(model)
    for call in range(6):
        x = torch.randn(4, 3, device=device)
        result, expected = jitted(x), twin(x)
        if call in (2, 4):
            treeplay.reset()
        result.square().sum().backward(), expected.square().sum().backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert jitted.statistics().recordings == 2


def reports() -> list[Any]:
    """Of the graph that was compiled last: those of other tests may be alive."""
    found = graph_reports()
    return [report for report in found if report.graph_id == found[-1].graph_id]


@pytest.mark.parametrize("device", DEVICES)
def test_T3_graphs_of_torch_compile(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_tape(device, monkeypatch)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend=backend, options={"inner": "aten"})
    kept = []
    for call in range(9):
        x = torch.randn(4, 3, device=device)
        result, expected = compiled(x), twin(x)
        if call == 4:  # between a forward and its backward
            forward, backward = reports()
            assert (forward.outcome, backward.outcome) == ("recorded", "recorded")
            assert forward.launch is not None and forward.launch.launches == 5 - sum(forward.not_replayed.values())
            treeplay.reset()
            assert held() == 0 and {report.outcome for report in reports()} == {"compiled"}
            assert all(report.launch is None for report in reports())
        result.square().sum().backward(), expected.square().sum().backward()
        kept.append((result.detach(), expected.detach()))
    for found, wanted in kept:
        torch.testing.assert_close(found, wanted)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    for report in reports():
        assert report.launch is not None and report.outcome == "recorded"
        assert report.not_replayed["warm-up"] == 2 and f"{report.launch.launches} replays" in str(report)


@pytest.mark.parametrize("device", DEVICES)
def test_T3_graphed_callables(device: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
    twin = copy.deepcopy(model)
    treeplay.graphs.make_graphed_callables(model, (torch.randn(4, 3, device=device),))
    statistics: Callable[[], Any] = model.forward.statistics  # type: ignore[attr-defined]
    kept = []
    for call in range(6):
        x = torch.randn(4, 3, device=device)
        result, expected = model(x), twin(x)
        if call == 2:  # between a forward and its backward
            treeplay.reset()
            assert (statistics().kept, statistics().replays) == (0, 3)
        result.square().sum().backward(), expected.square().sum().backward()
        kept.append((result.detach(), expected.detach()))
    for found, wanted in kept:
        torch.testing.assert_close(found, wanted)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert (statistics().recordings, statistics().kept, statistics().replays) == (2, 1, 6)


def test_a_graph_that_the_user_recorded_stays() -> None:
    x = torch.ones(3)
    graph = treeplay.graphs.Graph()
    with treeplay.graphs.graph(graph):
        y = x * 3 - 1
    treeplay.reset()
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [5.0] * 3
