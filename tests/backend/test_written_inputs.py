"""Arguments that a program writes are recorded where they lie, by `jit` and behind `torch.compile`: each call writes once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import jit, the_recording
from support.compiled import compiled, new_reports
from support.recordings import on_a_tape
from support.taped_gpu import capture_on_the_cpu
from treeplay.observe import counters

CALLS = 6
Program = Callable[..., Any]


def written(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def exchanged(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both are written, from each other; one is a result too."""
    before = x.clone()
    x.mul_(3).sub_(y)
    y.copy_(before * 0.5 - x)
    return x, x.t() - y


def rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A part of one is written."""
    x[1:].mul_(2).sub_(y[:-1])
    return x.sum(0) - y


def through_data(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One is written without a word to autograd."""
    data = x.data
    data.mul_(3).sub_(y)
    data[1:] = 0.5
    y.copy_(x - 1)
    return x * 2 - y


PROGRAMS: dict[str, tuple[Program, int]] = {"one": (written, 1), "two": (exchanged, 2), "a part": (rows, 2)}


def given(count: int, call: int, device: str) -> list[torch.Tensor]:
    # New ones in each call.
    return [(torch.arange(16.0, device=device).reshape(4, 4) - 3 * at + call) / 4 for at in range(count)]


def check_call(run: Program, program: Program, args: list[torch.Tensor]) -> tuple[Any, Any]:
    """One call: results, arguments and who is who are eager's. Results and what they are for good."""
    eagers = copy.deepcopy(args)
    before = [one._version for one in (*args, *eagers)]
    places = [arg.data_ptr() for arg in args]
    found, expected = run(*args), program(*eagers)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(args, eagers, rtol=0, atol=0)
    assert [arg.data_ptr() for arg in args] == places
    are_new = [one._version > version for one, version in zip((*args, *eagers), before, strict=True)]
    assert are_new[: len(args)] == are_new[len(args) :]  # autograd knows what was written
    if isinstance(found, tuple):
        assert [one is args[0] for one in found] == [other is eagers[0] for other in expected]
    return found, copy.deepcopy(expected)


def check_calls(run: Program, program: Program, count: int, device: str) -> None:
    kept = [check_call(run, program, given(count, call, device)) for call in range(CALLS)]
    for found, expected in kept:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_T27_jit_records_writes_where_they_are_made(name: str, device: str) -> None:
    program, count = PROGRAMS[name]
    run = jit(program)
    check_calls(run, program, count, device)
    launch, statistics = the_recording(run).launch, run.statistics()
    assert statistics.replays == (CALLS - 1 if device == "cpu" else CALLS - 2)
    assert launch.stage == ("bound" if device == "cpu" else "recorded") and launch.copied_bytes == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_T27_the_backend_records_writes_where_they_are_made(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    on_a_tape(device, monkeypatch)
    program, count = PROGRAMS[name]
    check_calls(compiled(program, dynamic=False), program, count, device)
    (report,) = new_reports()
    assert (report.outcome, report.skips) == ("recorded", ()) and "total" not in counters["skips"]
    assert report.launch is not None and (report.launch.stage, report.launch.launches) == ("recorded", CALLS - 1)
    assert device == "cpu" or report.launch.copied_bytes == 0
    assert sum(item.is_written for item in report.inputs) == (2 if name == "two" else 1)


def test_the_backend_moves_no_version_for_a_write_through_data(device: str, fresh_dynamo: None) -> None:
    check_calls(compiled(through_data, dynamic=False), through_data, 2, device)


def test_Dplus2_a_write_to_an_argument_is_recorded_and_made_once_in_each_call(
    device: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    on_a_tape(device, monkeypatch)
    run = compiled(written, dynamic=False)
    for call in range(5):  # the first is no replay yet, the second captures
        x = torch.full((3,), float(call), device=device)
        assert run(x).tolist() == [2.0 * call + 2] * 3 and x.tolist() == [call + 1.0] * 3
    (report,) = new_reports()
    assert report.launch is not None and (report.launch.stage, report.launch.launches) == ("recorded", 4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_T27_compiled_kernels_write_where_arguments_lie(name: str, fresh_dynamo: None) -> None:
    program, count = PROGRAMS[name]
    check_calls(compiled(program, "inductor", dynamic=False), program, count, "cuda")
    (report,) = new_reports()
    assert report.launch is not None and (report.launch.stage, report.launch.launches) == ("recorded", CALLS - 1)


@pytest.mark.parametrize("name", PROGRAMS)
def test_T27_a_launch_function_writes_to_the_arguments_of_its_call(
    name: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    capture_on_the_cpu(monkeypatch)
    program, count = PROGRAMS[name]
    check_calls(compiled(program, dynamic=False), program, count, "cpu")
    (report,) = new_reports()
    assert report.launch is not None and (report.launch.stage, report.launch.launches) == ("recorded", CALLS - 1)


@pytest.mark.parametrize("front", ["jit", "backend"])
def test_T27_what_is_written_before_a_loss_is_written_once_and_its_gradients_are_eagers(
    front: str, device: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    on_a_tape(device, monkeypatch)

    def loss(memory: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            memory.mul_(0.5).sub_(w)
        return ((memory * w).tanh() - w).sum()

    run = jit(loss) if front == "jit" else compiled(loss, dynamic=False)
    ws = [torch.linspace(-1, 1, 4, device=device).requires_grad_() for _ in range(2)]
    for call in range(CALLS):
        memories = [given(1, call, device)[0] for _ in ws]
        losses = [program(memory, w) for program, memory, w in zip((run, loss), memories, ws, strict=True)]
        for one in losses:
            one.backward()
        torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)
        torch.testing.assert_close(memories[0], memories[1], rtol=0, atol=0)
        torch.testing.assert_close(ws[0].grad, ws[1].grad, rtol=0, atol=0)
    if front == "jit":
        assert run.statistics().refusals == 0 and run.statistics().replays >= CALLS - 2
    for report in new_reports():
        assert report.outcome == "recorded" and report.launch is not None and report.launch.stage == "recorded"
        assert report.launch.launches >= CALLS - 3
