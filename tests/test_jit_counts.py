"""Every call is counted as what it was: the kinds add up to the calls, and `explain()` tells the same numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import treeplay
from support import jit
from treeplay.errors import CaptureFailed
from treeplay.values.refusal import Reason
from treeplay.values.statistics import Statistics

GPU = pytest.param(
    "cuda",
    marks=pytest.mark.gpu,
)
DEVICES = ["cpu", GPU]


def told(program: Any) -> Statistics:
    """The statistics, once it is sure that they add up and are what `explain()` says."""
    statistics: Statistics = program.statistics()
    assert statistics.calls == statistics.replays + sum(statistics.not_replayed.values())
    head = next(line for line in program.explain().splitlines() if " calls =" in line)
    numbers = {what: int(count) for count, what in re.findall(r"(\d+) ([^+;=]+?)(?= \+|;| =)", head)}
    assert numbers.pop("calls") == statistics.calls and numbers.pop("replayed") == statistics.replays, head
    assert {what: numbers[what] for what in statistics.not_replayed} == statistics.not_replayed, head
    for key in statistics.keys:
        for recording in key.recordings:
            assert recording.launch.stage in ("bound", "warming") or recording.launch.launches == recording.replays
    return statistics


def warm_up(device: str) -> dict[str, int]:
    return {"warm-up": 1} if device == "cuda" else {}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lower", ["aten", "capture"])
def test_T43_replays_are_launches_of_a_recording(device: str, lower: str) -> None:
    total = torch.ones(2, device=device)
    jitted = jit(lambda x: total.mul_(2).sub_(x) * 3, lower=lower)
    for call in range(1, 7):
        jitted(torch.full((2,), float(call), device=device))
        statistics = told(jitted)
        assert statistics.calls == call and statistics.replays == max(0, call - 1 - len(warm_up(device)))
    assert statistics.not_replayed == {"observed": 1, **warm_up(device)}
    (recording,) = statistics.keys[0].recordings
    assert recording.not_replayed == warm_up(device) and recording.replays == statistics.replays
    assert recording.launch.captures == (0 if recording.launch.stage == "bound" else 1)


@pytest.mark.parametrize("device", DEVICES)
def test_T43_calls_of_a_program_that_the_caller_differentiates(device: str) -> None:
    model = nn.Linear(3, 2).to(device)
    jitted = jit(model)
    for _ in range(5):
        jitted(torch.randn(4, 3, device=device)).sum().backward()
    statistics = told(jitted)
    assert statistics.replays == 4 - len(warm_up(device))
    assert statistics.not_replayed == {"observed": 1, **warm_up(device)}


def test_T43_refused_calls() -> None:
    jitted = jit(lambda x: x * x.sum().item(), on_refusal="eager")
    with pytest.warns(UserWarning, match="item"):
        for _ in range(4):
            jitted(torch.ones(2))
    assert told(jitted).not_replayed == {"observed": 1, "refused": 3}


def test_refusals_that_are_raised() -> None:
    jitted = jit(lambda x: x * x.sum().item())
    jitted(torch.ones(2))
    for _ in range(2):
        with pytest.raises(treeplay.Refusal):
            jitted(torch.ones(2))
    statistics = told(jitted)
    assert statistics.not_replayed == {"observed": 1, "a refusal was raised": 2} and statistics.eager_calls == 1


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("around", "what"),
    [
        (torch.autograd.graph.save_on_cpu, "hooks on saved tensors"),
        (lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), "hooks on saved tensors"),
        (lambda: Dispatch(), "the mode Dispatch"),
        (lambda: Functions(), "the mode Functions"),
        (lambda: torch.autograd.forward_ad.dual_level(), "forward-mode differentiation"),
    ],
)
def test_calls_under_what_is_somebodys_are_counted_and_say_why(around: Callable[[], Any], what: str) -> None:
    jitted = jit(lambda x: (x * 3).sin() - 1)
    x = torch.ones(2, requires_grad=True)
    for _ in range(3):
        jitted(x)
    for _ in range(2):
        with around():
            jitted(x)
    jitted(x)
    statistics = told(jitted)
    assert statistics.not_replayed == {"observed": 1, f"under {what}": 2} and statistics.replays == 3
    assert re.search(rf"{what}.*\n?.*(outside of|follows or checks)", jitted.explain()), jitted.explain()


def test_calls_inside_of_transforms_and_checkpoints() -> None:
    jitted, x = jit(lambda x: (x * 3).sin()), torch.ones(2, 3)
    torch.func.vmap(jitted)(x)
    torch.utils.checkpoint.checkpoint(jitted, x.requires_grad_(), use_reentrant=False).sum().backward()
    found = told(jitted).not_replayed
    assert found.pop("under the function transform vmap") == 1 and sum(found.values()) == 2, found


def test_a_part_of_another_program_is_no_call_of_its_own() -> None:
    inner = jit(lambda x: x * 3 - 1)
    outer = jit(lambda x: inner(x) * 2)
    for needs_gradient in (False, True):  # the trace of what is differentiated runs the program twice
        for _ in range(2):
            outer(torch.ones(2, requires_grad=needs_gradient))
    assert told(inner).calls == 0


def test_what_a_replay_raises_is_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = jit(lambda x: x * 3 - 1)
    for _ in range(3):
        jitted(torch.ones(2))

    def broken(args: Any, kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(jitted._manager.cache, "warm", broken)
    with pytest.raises(KeyboardInterrupt):
        jitted(torch.ones(2))
    monkeypatch.undo()
    assert told(jitted).not_replayed == {"observed": 1, "a replay raised": 1}


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_taken_away_by_dropped_and_reset_recordings(device: str) -> None:
    jitted = jit(lambda x: x * 3 - 1)
    with treeplay.settings.changed(max_recordings_per_program=2), pytest.warns(UserWarning, match="drops the least"):
        for size in (1, 2, 3, 4):
            for _ in range(4):
                jitted(torch.ones(size, device=device))
    before = told(jitted)
    assert before.replays == 4 * (3 - len(warm_up(device))) and before.dropped == 2
    jitted.reset()
    after = told(jitted)
    assert (after.calls, after.replays, after.not_replayed) == (before.calls, before.replays, before.not_replayed)


def test_an_argument_without_a_hash_is_counted() -> None:
    jitted = jit(lambda x, odd: x * 2, on_refusal="eager")
    with pytest.warns(UserWarning, match="hashed"):
        jitted(torch.ones(2), bytearray(b"odd"))
    assert told(jitted).not_replayed == {"refused": 1}


@pytest.mark.gpu
def test_calls_after_recording_was_given_up_are_no_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise CaptureFailed(Reason(op="some_kernel", why="cannot be captured", advice="leave it out"))

    monkeypatch.setattr("treeplay.device.cuda.recording.capture_work", fail)
    jitted = jit(lambda x: x * 3 - 1)
    with pytest.warns(UserWarning, match="unrecorded"):
        for _ in range(6):
            jitted(torch.ones(2, device="cuda"))
    facts = told(jitted)
    assert facts.replays == 0 and facts.not_replayed == {"observed": 1, "warm-up": 1, "given up": 4}


@pytest.mark.gpu
def test_T43_evictions_captures_and_warm_ups_on_a_gpu() -> None:
    first, second = jit(lambda x: x * 3 - 1), jit(lambda x: x * 5 - 2)
    x = torch.randn(64, device="cuda")
    with treeplay.settings.changed(memory_budget_bytes=1):
        for program in (first, first, first, second, second, second, first, first):
            program(x)
    facts = told(first)
    assert (facts.captures, facts.evictions, facts.replays) == (2, 1, 3), first.explain()
    assert facts.not_replayed == {"observed": 1, "warm-up": 1} and "let go 1 times" in first.explain()
