"""Under torch's profiler each call is a range that is named after the program."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import treeplay


def ranges(call: Callable[[], object]) -> list[str]:
    """The names of treeplay's ranges while `call` runs, one for each time."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    return [event.name for event in profiler.events() if event.name.startswith("treeplay: ")]


def test_each_call_is_one_range(device: str) -> None:
    @treeplay.jit(lower="aten", on_refusal="raise")
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2 - 1

    x = torch.ones(3, device=device)
    name = f"treeplay: {step.statistics().program}"
    assert ranges(lambda: [step(x) for _ in range(6)]) == [name] * 6
    launch = step.statistics().keys[0].recordings[0].launch
    assert launch.stage == ("bound" if device == "cpu" else "recorded")


def test_a_program_inside_another_is_part_of_its_range() -> None:
    inner = treeplay.jit(lambda x: x * 2 - 1, lower="aten", on_refusal="raise")
    outer = treeplay.jit(lambda x: inner(x) * 3, lower="aten", on_refusal="raise")
    assert len(ranges(lambda: [outer(torch.ones(2)) for _ in range(4)])) == 4
    assert outer.statistics().replays == 3


def test_operators_of_a_replay_are_inside_its_range() -> None:
    module = treeplay.jit(torch.nn.Linear(3, 2), lower="aten")
    x = torch.ones(4, 3)
    for _ in range(3):
        module(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        module(x)
    (outer,) = [event for event in profiler.events() if event.name == "treeplay: Linear"]
    assert any("addmm" in event.name for event in _inside(outer))


def test_a_call_that_misses_the_last_recording_is_one_range() -> None:
    step = treeplay.jit(lambda x: x * 2 - 1, lower="aten", on_refusal="raise")
    for size in (2, 2, 3, 3):
        step(torch.ones(size))
    assert len(ranges(lambda: step(torch.ones(2)))) == 1


def test_what_a_replay_raises_ends_its_range() -> None:
    table = torch.arange(4.0)
    step = treeplay.jit(lambda at: table[at] * 2, lower="aten", on_refusal="raise")
    for _ in range(2):
        step(torch.tensor([1, 2]))

    def fails() -> None:
        with pytest.raises(IndexError):
            step(torch.tensor([7, 7]))
        step(torch.tensor([1, 3]))

    assert len(ranges(fails)) == 2


def _inside(event: torch.autograd.profiler_util.FunctionEvent) -> list[torch.autograd.profiler_util.FunctionEvent]:
    children = list(event.cpu_children)
    return children + [deeper for child in children for deeper in _inside(child)]
