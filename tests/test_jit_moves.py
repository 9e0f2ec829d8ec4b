"""Weights and inputs that lie elsewhere from call to call: followed, at the price that was measured, by one recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import assert_alike, assert_same, jit, the_recording, training
from support.compiled import compiled, new_reports
from support.recordings import on_a_tape

MOVES = 100
Move = Callable[[nn.Linear, int, list[torch.Tensor]], None]


def to_new_memory(layer: nn.Linear, call: int, kept: list[torch.Tensor]) -> None:
    kept.append(layer.weight.data)  # its old place is not free for the new one
    layer.weight.data = layer.weight.data.flip(0) * 1.5 - 0.25


def to_another_parameter(layer: nn.Linear, call: int, kept: list[torch.Tensor]) -> None:
    kept.append(layer.weight)
    layer.weight = nn.Parameter(layer.weight.detach().flip(0) * 1.5 - 0.25, requires_grad=layer.weight.requires_grad)


def to_and_fro(layer: nn.Linear, call: int, kept: list[torch.Tensor]) -> None:
    if not kept:
        kept += [layer.weight.data, layer.weight.data.flip(0) * 1.5 - 0.25]
    layer.weight.data = kept[call % 2]


def check_recording(launch: Any, device: str, *, moves: int, loss_bytes: int = 0) -> None:
    """Made once, and nothing copied where addresses can be changed. That of a loss cannot: other values lay in its block."""
    assert launch.captures == (0 if launch.stage == "bound" else 1)
    if device == "cuda":
        assert launch.stage == "recorded" and launch.copied_bytes_per_call <= loss_bytes
        assert launch.patched >= moves


WAYS = pytest.mark.parametrize("move", [to_new_memory, to_another_parameter, to_and_fro], ids=lambda way: way.__name__)


@WAYS
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_T12_a_weight_that_moves_a_hundred_times_is_recorded_once(
    move: Move, needs_gradient: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_tape(device, monkeypatch)
    torch.manual_seed(2)
    layer = nn.Linear(4, 4, device=device).requires_grad_(needs_gradient)
    jitted, kept, places = jit(lambda x: layer(x).tanh() - x), [], set()  # type: ignore[var-annotated]
    for call in range(MOVES):
        x = torch.rand(2, 4, device=device)
        found, expected = jitted(x), layer(x).tanh() - x
        assert_alike(found, expected)
        places.add(layer.weight.data_ptr())
        if needs_gradient:
            gradients = []
            for out in (found, expected):
                out.pow(2).sum().backward()
                gradients.append((layer.weight.grad, layer.bias.grad))
                layer.zero_grad()
            assert_alike(*gradients)
        move(layer, call, kept)
    statistics = jitted.statistics()
    assert statistics.recordings == 1 and statistics.not_replayed["observed"] == 1, jitted.explain()
    assert len(places) == (2 if move is to_and_fro else MOVES)
    if not needs_gradient:
        check_recording(the_recording(jitted).launch, device, moves=MOVES - 3)
    for report in new_reports() if needs_gradient and device == "cuda" else ():
        assert report.launch is not None and (report.launch.stage, report.launch.captures) == ("recorded", 1)


@WAYS
def test_T12_so_is_it_behind_torch_compile(
    move: Move, device: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    on_a_tape(device, monkeypatch)
    torch.manual_seed(2)
    layer = nn.Linear(4, 4, device=device).requires_grad_(False)
    run, kept = compiled(lambda x: layer(x).tanh() - x, dynamic=False), []  # type: ignore[var-annotated]
    for call in range(MOVES):
        x = torch.rand(2, 4, device=device)
        assert_alike(run(x), layer(x).tanh() - x)
        move(layer, call, kept)
    (report,) = new_reports()
    assert report.launch is not None and (report.launch.stage, report.launch.captures) == ("recorded", 1)
    assert device == "cpu" or (report.launch.copied_bytes == 0 and report.launch.patched >= MOVES - 3)


def test_T12_a_step_trains_the_weight_where_it_is_now(device: str) -> None:
    nets = [nn.Linear(4, 4, device=device) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    steps = [training(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)) for net in nets]
    jitted, kept = jit(steps[0]), []
    for _ in range(MOVES):
        x, y = torch.rand(2, 4, device=device), torch.rand(2, 4, device=device)
        assert_alike(jitted(x, y), steps[1](x, y))
        assert_alike(list(nets[0].parameters()), list(nets[1].parameters()))
        kept.append(nets[0].weight.data)
        before = [weight.clone() for weight in kept[-3:]]
        nets[0].weight.data = nets[0].weight.data.clone()
        assert_same(kept[-3:], before)  # nothing is written where it was
    statistics = jitted.statistics()
    assert statistics.recordings <= 2, jitted.explain()  # the first step makes gradients and momenta
    check_recording(statistics.keys[0].recordings[-1].launch, device, moves=MOVES - 6, loss_bytes=4)


@pytest.mark.gpu
def test_T12_many_moves_in_one_go_are_one_update_of_the_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    from treeplay.device.cuda.nodes import patch

    calls: Counter[str] = Counter()
    real = patch.function

    def function(name: str) -> Callable[..., int]:
        found = real(name)

        def counted(*args: Any) -> int:
            calls[name] += 1
            return int(found(*args))

        return counted

    monkeypatch.setattr(patch, "function", function)
    weights = [torch.full((64,), 1.0 + at / 64, device="cuda") for at in range(40)]

    def program(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = (x * weight - 1) / weight
        return x

    jitted = jit(program)
    x = torch.rand(64, device="cuda")
    for _ in range(4):
        assert_same(jitted(x), program(x))
    kept = [*weights]
    for number in range(3):
        weights[:] = [weight.flip(0) + number for weight in weights]
        kept += weights
        calls.clear()
        found = jitted(x)
        assert calls["cuGraphExecUpdate_v2"] == 1 and calls["cuGraphExecKernelNodeSetParams_v2"] <= 2, calls
        assert_same(found, program(x))
    launch = the_recording(jitted).launch
    assert (launch.stage, launch.captures, launch.copied_bytes) == ("recorded", 1, 0) and launch.patched == 120


def slice_of(x: torch.Tensor) -> torch.Tensor:
    return x[:2048] * 2 - 1


@pytest.mark.gpu
@pytest.mark.parametrize("lower", ["aten", "inductor"])
def test_T12_of_a_gibibyte_that_moves_nothing_is_copied(lower: str) -> None:
    """What a call takes beside the bare launch is measured in `benchmarks.gpu.run`."""
    given = [torch.full((2**28,), float(number), device="cuda") for number in range(3)]
    jitted = treeplay.jit(slice_of, lower=lower, on_refusal="raise")  # type: ignore[call-overload]
    for _ in range(3):
        for x in given:
            assert_same(jitted(x), slice_of(x))
    launch = the_recording(jitted).launch
    assert launch.stage == "recorded" and launch.copied_bytes == 0, launch.policy
