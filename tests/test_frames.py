"""How many Python frames a warm call takes from its caller, or Dynamo, to the launch: each costs some 50 ns."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support.compiled import new_reports
from support.taped_gpu import TapedGraph, capture_on_the_cpu
from treeplay.torch_compile import backend
from treeplay.torch_seam import allocator

Chain = list[str]


def frames_to_launch(call: Callable[[], Any]) -> list[str]:
    """The functions between `call` and the first operator that it runs, by name."""
    found: list[list[str]] = []

    def watch(frame: Any, event: str, arg: Any) -> None:
        is_operator = event == "c_call" and (
            arg.__name__ == "addmm" or frame.f_code.co_qualname == "OpOverload.__call__"
        )
        if is_operator and not found:
            chain = []
            while frame.f_code is not call.__code__ and "_dynamo" not in frame.f_code.co_filename:
                chain.append(frame.f_code.co_qualname)
                frame = frame.f_back
            found.append(chain[::-1])

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found[0]


@pytest.mark.parametrize("is_module", [False, True])
def test_a_warm_call_takes_four_frames(is_module: bool) -> None:
    net, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    jitted = treeplay.jit(net if is_module else lambda x: net(x), lower="aten")

    def call() -> Any:
        with torch.no_grad():
            return jitted(x)

    for _ in range(3):
        call()
    assert len(frames_to_launch(call)) == 4  # the caller's call, the manager's, the call function, the launch


@pytest.mark.parametrize("has_gradients", [False, True])
def test_a_warm_call_of_a_compiled_graph_takes_one_frame_and_its_node_one(has_gradients: bool) -> None:
    """On the CPU, where the generated code calls what was compiled; here that is the graph as it is."""
    net, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    compiled = torch.compile(net, backend="treeplay", options={"inner": "aten"})

    def call() -> Any:
        with torch.set_grad_enabled(has_gradients):
            return compiled(x)

    for _ in range(2):
        call()
    chain = frames_to_launch(call)
    assert chain.index("boxed.<locals>.call") == (2 if has_gradients else 1)


@pytest.fixture
def chains(device: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None) -> list[Chain]:
    """For each launch from here on, the functions between Dynamo, or autograd's engine, and the graph."""
    found: list[Chain] = []

    def noted(replay: Callable[..., None]) -> Callable[..., None]:
        def note(*args: Any) -> None:
            frame: Any = sys._getframe(1)
            chain: Chain = []
            while frame is not None and not _is_callers(frame.f_code):
                chain.append(frame.f_code.co_qualname)
                frame = frame.f_back
            found.append(chain[::-1])
            replay(*args)

        return note

    if device == "cpu":
        capture_on_the_cpu(monkeypatch)
        monkeypatch.setattr(TapedGraph, "replay", noted(TapedGraph.replay))
    else:
        replay_of = allocator.replay_of
        monkeypatch.setattr(allocator, "replay_of", lambda graph: noted(replay_of(graph)))
    return found


def _is_callers(code: Any) -> bool:
    return "_dynamo" in code.co_filename or code.co_filename == __file__ or "torch/autograd" in code.co_filename


def run(net: torch.nn.Module, device: str, chains: list[Chain], *, has_gradients: bool) -> list[Chain]:
    """The chains of one warm call, and of its backward; results are eager's."""
    net = net.to(device)
    twin = copy.deepcopy(net)
    compiled = torch.compile(net, backend=backend, options={"inner": "aten"})
    for _ in range(5):
        chains.clear()
        x = torch.randn(2, 4, device=device)
        with torch.set_grad_enabled(has_gradients):
            found, expected = compiled(x), twin(x)
        torch.testing.assert_close(found, expected)
        if has_gradients:
            for one, other in ((found, net), (expected, twin)):
                other.zero_grad()
                (one * one).sum().backward()
            for parameter, expected in zip(net.parameters(), twin.parameters(), strict=True):
                torch.testing.assert_close(parameter.grad, expected.grad)
    assert all("recorded" in report.outcome for report in new_reports()) and len(chains) == 1 + has_gradients
    return chains


@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("writes", [False, True])
def test_from_dynamo_to_the_launch_a_warm_call_takes_at_most_three_frames(
    writes: bool, has_gradients: bool, device: str, chains: list[Chain]
) -> None:
    between = torch.nn.BatchNorm1d(8) if writes else torch.nn.Tanh()
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), between, torch.nn.Linear(8, 3))
    forward = run(net, device, chains, has_gradients=has_gradients)[0]
    assert forward == (["call", "forward", "launch"] if has_gradients else ["call", "launch"])
