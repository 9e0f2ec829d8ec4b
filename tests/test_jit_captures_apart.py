"""What one thread records holds nothing of what others do meanwhile, and takes nothing from them.

threads 0, 1   programs of their own, recorded, replayed and dropped again and again
thread 2       the same operators as they are: memory is allocated and freed, state written, random numbers drawn
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from support import assert_alike, assert_same, jit, training
from support.compiled import compiled, new_reports
from support.recordings import on_a_tape

ROUNDS, CALLS = 4, 5
Make = Callable[[int, str], tuple[Callable[..., Any], Callable[..., Any]]]


def inference(number: int, device: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    weight = torch.linspace(-1, 1 + number, 16, device=device)

    def program(x: torch.Tensor) -> torch.Tensor:
        out = (x * weight).tanh() - x
        return out * 2 - number

    return jit(program), program


def update(number: int, device: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """State that a call too many, or one of another thread's, would show in."""
    states = [torch.zeros(16, device=device) for _ in range(2)]

    def over(state: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        def program(x: torch.Tensor) -> torch.Tensor:
            state.mul_(0.5).sub_(x)
            return state * 3 - number

        return program

    return jit(over(states[0])), over(states[1])


def step(number: int, device: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    nets = [nn.Sequential(nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 16)).to(device) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    steps = [training(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)) for net in nets]

    def over(step: Callable[..., Any]) -> Callable[[torch.Tensor], Any]:
        return lambda x: step(x.reshape(1, 16), x.flip(0).reshape(1, 16))

    return jit(over(steps[0])), over(steps[1])


def opaque(number: int, device: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Recorded as it runs; on a GPU on two streams, which come together again."""
    weight = torch.linspace(-1, 1, 16, device=device)
    beside = torch.cuda.Stream() if device == "cuda" else None

    def program(x: torch.Tensor) -> torch.Tensor:
        if beside is None:
            return (x - number) * weight - x.cumsum(0)
        here = torch.cuda.current_stream()
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            part = (x - number) * weight
        rest = x.cumsum(0)
        here.wait_stream(beside)
        return part - rest

    return jit(program, lower="capture"), program


class Beside(threading.Thread):
    """Computes as it is until it is told to stop."""

    def __init__(self, device: str) -> None:
        super().__init__(daemon=True)
        self.device = device
        self.count = 0
        self.is_over = threading.Event()
        self.error: BaseException | None = None
        self.state = torch.zeros(64, device=device)
        self.twin = 0  # all elements of the state are this whole number
        self.own = torch.Generator(device).manual_seed(5)
        self.draws: list[torch.Tensor] = []  # of the process's generator

    def run(self) -> None:
        try:
            torch.set_num_threads(1)
            while not self.is_over.is_set():
                self.once()
        except BaseException as error:
            self.error = error

    def once(self) -> None:
        x = torch.full((64,), float(self.count % 7), device=self.device)
        self.state.mul_(3).add_(x).remainder_(1021)
        self.twin = (3 * self.twin + self.count % 7) % 1021
        large = torch.rand(4096, generator=self.own, device=self.device)
        del large
        if self.count % 16 == 0:
            assert torch.equal(self.state, torch.full_like(self.state, self.twin))
        if len(self.draws) < 4000:
            self.draws.append(torch.rand(2))
        self.count += 1


class Recorder(threading.Thread):
    """Makes a program, has it recorded and replayed, and drops it."""

    def __init__(self, number: int, make: Make, device: str, together: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self.number, self.make, self.device, self.together = number, make, device, together
        self.error: BaseException | None = None
        self.last: Any = None

    def run(self) -> None:
        try:
            torch.set_num_threads(1)
            for turn in range(ROUNDS):
                self.together.wait(60)
                self.once(turn)
        except BaseException as error:
            self.error = error
            self.together.abort()

    def once(self, turn: int) -> None:
        jitted, plain = self.make(self.number, self.device)
        kept = []
        for call in range(CALLS + 4):
            x = torch.arange(16.0, device=self.device) / 8 + turn + call
            kept.append((jitted(x), plain(x)))
        for found, expected in kept:
            assert_alike(found, expected, f"thread {self.number}, turn {turn}")
        self.last = jitted


def run_together(makes: Sequence[Make], device: str) -> tuple[Beside, list[Recorder]]:
    """A thread that records for each, and one that computes, until the former are done; raises what they raise."""
    beside, together = Beside(device), threading.Barrier(len(makes))
    recorders = [Recorder(number, make, device, together) for number, make in enumerate(makes)]
    for thread in (beside, *recorders):
        thread.start()
    for recorder in recorders:
        recorder.join(120)
        assert not recorder.is_alive()
    beside.is_over.set()
    beside.join(60)
    for thread in (beside, *recorders):
        if thread.error is not None:
            raise thread.error
    assert beside.count > 0 and torch.equal(beside.state, torch.full_like(beside.state, beside.twin))
    return beside, recorders


PROGRAMS = {"inference": inference, "update": update, "step": step, "opaque": opaque}


@pytest.mark.filterwarnings("ignore:treeplay")
@pytest.mark.parametrize("second", PROGRAMS)
def test_T13_two_threads_record_while_a_third_computes(second: str, device: str) -> None:
    state = torch.get_rng_state()
    beside, recorders = run_together((update, PROGRAMS[second]), device)
    if second != "step":  # whose weights are drawn
        torch.set_rng_state(state)
        assert_same(beside.draws, [torch.rand(2) for _ in beside.draws], "what another thread drew meanwhile")
    check_recordings(recorders, beside, device)


def check_recordings(recorders: list[Recorder], beside: Beside, device: str) -> None:
    """They were made, and a replay does nothing of what the third thread did."""
    before = beside.state.clone()
    for recorder in recorders:
        for _ in range(CALLS):  # some of those before may have run beside another thread's recording
            recorder.last(torch.arange(16.0, device=device))
        replays = recorder.last.statistics().replays
        for _ in range(CALLS):
            recorder.last(torch.arange(16.0, device=device))
        found = recorder.last.statistics()
        assert found.replays == replays + CALLS and found.refusals == 0, recorder.last.explain()
        stages = {recording.launch.stage for key in found.keys for recording in key.recordings}
        assert device == "cpu" or stages == {"recorded"}
    assert torch.equal(beside.state, before)


def test_T13_so_do_two_threads_behind_torch_compile(
    device: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    on_a_tape(device, monkeypatch)

    def make(number: int, device: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def program(x: torch.Tensor) -> torch.Tensor:
            return (x - number).tanh() * 2 - x.flip(0)

        return compiled(program, dynamic=False), program

    with torch._dynamo.config.patch(recompile_limit=64):
        _, recorders = run_together((make, make), device)
        for recorder in recorders:
            for _ in range(CALLS):  # some of those before may have run beside another thread's recording
                recorder.last(torch.arange(16.0, device=device))
    launches = [report.launch for report in new_reports()]
    assert len(launches) >= len(recorders)  # those of earlier rounds have gone with their functions
    assert {launch.stage for launch in launches if launch is not None} == {"recorded"} and None not in launches
