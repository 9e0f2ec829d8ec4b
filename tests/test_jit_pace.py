"""Each program is recorded on its own second call (third on a GPU), whatever others do, and at rest once its calls repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import treeplay
from support import assert_same, jit
from support.compiled import compiled, new_reports
from support.recordings import on_a_tape
from treeplay.torch_seam.patched import without_stand_in

ITERATIONS, JOINS = 9, 4  # the latter: the iteration in which another function is called first
Program = Callable[[torch.Tensor], torch.Tensor]


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2 - 1


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.tanh().t() - x


def joined(x: torch.Tensor) -> torch.Tensor:
    return (x - 3).cumsum(0)


def iterate(programs: dict[str, Program], device: str, after: Callable[[int], None]) -> None:
    """g(f(x)) in each iteration, and h of that from the fourth on; all results are kept, and right in the end."""
    kept = []
    for iteration in range(1, ITERATIONS + 1):
        x = (torch.arange(9.0, device=device).reshape(3, 3) + iteration) / 7
        found, expected = programs["g"](programs["f"](x)), turned(double(x))
        kept.append((found, expected))
        if iteration >= JOINS:
            kept.append((programs["h"](found), joined(expected)))
        after(iteration)
    for found, expected in kept:
        assert_same(found, expected)


def own_calls(iteration: int) -> dict[str, int]:
    """How often each was called by the end of an iteration."""
    return {"f": iteration, "g": iteration, "h": max(0, iteration - JOINS + 1)}


def test_T10_each_is_recorded_on_its_own_call_and_a_new_one_costs_the_others_nothing(device: str) -> None:
    programs: dict[str, Any] = {"f": jit(double), "g": jit(turned), "h": jit(joined)}
    before_replays = 1 if device == "cpu" else 2

    def after(iteration: int) -> None:
        for name, calls in own_calls(iteration).items():
            statistics = programs[name].statistics()
            assert statistics.replays == max(0, calls - before_replays), (iteration, name)
            assert statistics.calls == calls and statistics.recordings == (calls > 1)

    iterate(programs, device, after)
    for program in programs.values():
        (key,) = program.statistics().keys
        (recording,) = key.recordings
        assert recording.launch.stage == ("bound" if device == "cpu" else "recorded") and key.rerecorded == 0


def test_T10_so_are_graphs_of_torch_compile(device: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None) -> None:
    """Whose first call runs them as they are compiled, on a GPU too: kernels are ready by then."""
    on_a_tape(device, monkeypatch)
    bodies = {"f": double, "g": turned, "h": joined}
    programs: dict[str, Any] = {name: compiled(body, dynamic=False) for name, body in bodies.items()}

    def after(iteration: int) -> None:
        wanted = [max(0, calls - 1) for calls in own_calls(iteration).values() if calls]
        assert [report.launch.launches for report in new_reports() if report.launch is not None] == wanted, iteration

    iterate(programs, device, after)
    launches = [report.launch for report in new_reports()]
    assert [(launch.stage, launch.captures) for launch in launches if launch is not None] == [("recorded", 1)] * 3


def test_T10_a_module_is_replayed_on_when_dynamo_compiles_its_first_function(
    device: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    """Dynamo wraps methods of `nn.Module` then, once in a process."""
    for name in ("__init__", "__setstate__"):
        monkeypatch.setattr(nn.Module, name, without_stand_in(vars(nn.Module)[name]))
    monkeypatch.setattr(nn.Module, "___needs_generation_tag_patch", True, raising=False)
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).to(device)
    jitted = jit(net)
    x = torch.ones(3, 3, device=device)
    for _ in range(4):
        assert_same(jitted(x), net(x))
    before, method = jitted.statistics(), vars(nn.Module)["__init__"]
    torch.compile(double, backend="eager")(x)
    assert vars(nn.Module)["__init__"] is not method
    for _ in range(3):
        assert_same(jitted(x), net(x))
    after = jitted.statistics()
    assert (after.replays, after.recordings) == (before.replays + 3, 1), jitted.explain()


WAYS = ("as it is", "in two columns", "to be differentiated", "in inference mode", "as an integer", "by another number")


class World:
    """What a program of `ways` depends on, set for one call at a time."""

    def __init__(self, device: str) -> None:
        self.weight = torch.linspace(-1, 1, 3, device=device)
        self.other = self.weight.flip(0).clone()
        self.flag = False

    def program(self, x: torch.Tensor, power: int = 2) -> torch.Tensor:
        out = x * self.weight - power
        return out.tanh() * 2 if self.flag else out - x.sum()

    def call(self, run: Callable[..., torch.Tensor], way: tuple[str, bool, bool], step: int) -> torch.Tensor:
        """One call; `step` only changes values, to which no recording belongs."""
        name, self.flag, is_exchanged = way
        if is_exchanged:
            self.weight, self.other = self.other, self.weight
        x = (torch.arange(6.0, device=self.weight.device).reshape(2, 3) + step) / 5
        match name:
            case "in two columns":
                return run(x.repeat(2, 1))
            case "to be differentiated":
                return run(x.requires_grad_())
            case "in inference mode":
                with torch.inference_mode():
                    return run(x)
            case "as an integer":
                return run(x.long())
            case "by another number":
                return run(x, 3)
            case _:
                return run(x)


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.sampled_from(WAYS), st.booleans(), st.booleans()), min_size=1, max_size=5))
def check_convergence(device: str, period: list[tuple[str, bool, bool]]) -> None:
    """A period of calls, again and again, in which shapes, modes, flags, numbers and weights change."""
    ours, eagers = World(device), World(device)
    jitted = treeplay.jit(ours.program, lower="aten", on_refusal="raise")

    def repeat(times: int, start: int) -> None:
        for step in range(start, start + times * len(period)):
            way = period[step % len(period)]
            found, expected = ours.call(jitted, way, step), eagers.call(eagers.program, way, step)
            assert_same(found, expected, f"call {step} of {period}")

    def settled() -> tuple[Any, ...]:
        found = jitted.statistics()
        causes = [(key.rerecorded, key.rerecorded_because, key.differs, key.refusal) for key in found.keys]
        return found.recordings, found.refusals, found.dropped, causes, found.not_replayed

    repeat(3, 0)
    before, found = settled(), jitted.statistics()
    repeat(1, 3 * len(period))  # what the third period recorded last, a GPU captures in this one
    captures = jitted.statistics().captures
    repeat(1, 4 * len(period))
    after = jitted.statistics()
    assert settled() == before and after.replays == found.replays + 2 * len(period), (period, jitted.explain())
    assert after.captures == captures
    if not any(is_exchanged for _, _, is_exchanged in period):
        assert after.moves == found.moves
    stages = {recording.launch.stage for key in after.keys for recording in key.recordings}
    assert stages == {"bound" if device == "cpu" else "recorded"}


@pytest.mark.filterwarnings("ignore:treeplay")
def test_Tplus18_a_program_whose_calls_repeat_is_at_rest_after_three_periods(device: str) -> None:
    check_convergence(device)


class Layers:
    """Two layers whose weights change places; one weight is not used."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(3)
        self.layers = [nn.Linear(3, 3, bias=False, device=device).requires_grad_(False) for _ in range(2)]
        self.spare = nn.Linear(3, 3, bias=False, device=device).requires_grad_(False)
        self.flag = False

    def exchange(self) -> None:
        first, second, spare = *self.layers, self.spare
        first.weight, second.weight, spare.weight = second.weight, spare.weight, first.weight

    def program(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.layers
        out = second(first(x).tanh()) - x
        return out - 3 if self.flag else out.tanh()


def test_Tplus18_tensors_that_change_places_drop_no_recording(device: str) -> None:
    """Each was seen where it is no more, and is in a place that the program has."""
    world = Layers(device)
    jitted = jit(world.program)
    for call in range(24):
        x = torch.full((2, 3), 1.0 + call, device=device, requires_grad=call % 3 > 0)
        world.flag = call % 3 != 1
        assert_same(jitted(x), world.program(x))
        if call % 3 != 1:
            world.exchange()
        if call == 11:
            made = jitted.statistics().recordings
    assert jitted.statistics().recordings == made == 3, jitted.explain()
