"""Ctrl-C at any line of the call that records: it comes, it ends nothing but the call, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import copy
import linecache
import random
import signal
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import treeplay
from support import assert_same
from support.exceptions import WAYS, are_equal
from support.faults import surroundings
from treeplay.torch_seam.fakes import fake_over, memory_like

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


class PressedAtLine:
    """Traces Python and presses Ctrl-C before the given line from now on is run; counts lines."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.lines = 0
        self.is_pressed = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self.line

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines += 1
            if 0 < self.at <= self.lines and not self.is_pressed and not _is_quiet(frame):
                self.is_pressed = True
                signal.raise_signal(signal.SIGINT)
        return self.line

    def during(self, call: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            return call()
        finally:
            sys.settrace(before)


def _is_quiet(frame: FrameType) -> bool:
    """Whether Python tells of a line at which no signal can come: that of a `with` once more when it is left, that of a `try`,
    which does nothing and does not belong to a `with` around it, and the first of a `finally`: signals come after calls, at the
    beginning of functions and where loops begin again, and what was called before ended inside of the `try`."""
    path, number = frame.f_code.co_filename, frame.f_lineno
    line, before = (linecache.getline(path, at).lstrip() for at in (number, number - 1))
    return line.startswith(("with ", "try:")) or before.startswith("finally:")


class Training:
    """A whole step with a mode, random numbers, gradients and optimizer state."""

    def __init__(self, device: str) -> None:
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        with torch.no_grad():
            doubled = x * 2
        loss = self.model(doubled).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self) -> list[Any]:
        parameters = list(self.model.parameters())
        return [*parameters, *(p.grad for p in parameters), *(self.optimizer.state[p] for p in parameters)]


def count_lines(device: str, lower: str) -> int:
    """The lines of the call that records, once everything is imported."""
    for _ in range(2):
        training, x, pressed = Training(device), torch.ones(2, 3, device=device), PressedAtLine(-1)
        program: Any = treeplay.jit(training.step, lower=lower)
        program(x)
        pressed.during(lambda program=program, x=x: program(x))
    return pressed.lines


def check(device: str, lower: str, line: int) -> None:
    training, x = Training(device), torch.ones(2, 3, device=device)
    program: Any = treeplay.jit(training.step, lower=lower)
    program(x)
    before, state = surroundings(), copy.deepcopy(training.state())
    pressed = PressedAtLine(line)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of exceptions that Python drops, after which the signal comes again
        try:
            pressed.during(lambda: program(x))
        except KeyboardInterrupt:
            pass
        else:
            assert not pressed.is_pressed, "the signal was lost"
            return
    after = surroundings()
    assert not any(isinstance(p.grad, FakeTensor) for p in training.model.parameters())
    assert all(type(group["lr"]) is float for group in training.optimizer.param_groups)
    has_run = not torch.equal(training.state()[0], state[0])  # a call that was interrupted while it ran did half of it
    if device == "cuda":  # the first run of a recording, unrecorded, had drawn and not written yet
        has_run = has_run or after["generators"] != before["generators"]
    assert {**after, "generators": 0} == {**before, "generators": 0}
    if not has_run:
        assert after == before
        assert_same(training.state(), state)
    for _ in range(3):
        program(x)
    assert program.statistics().replays >= 2


def test_an_interrupt_while_an_argument_is_faked_leaves_the_dispatcher_as_it_was() -> None:
    mode, x, counted = FakeTensorMode(), torch.ones(3), PressedAtLine(-1)

    def faked() -> None:
        fake_over(memory_like(x), mode, x)

    def dispatcher() -> tuple[Any, ...]:
        excluded, included = torch._C._dispatch_tls_local_exclude_set(), torch._C._dispatch_tls_local_include_set()
        return str(excluded), str(included), torch._C._is_torch_function_all_disabled()

    counted.during(faked)
    assert counted.lines > 20
    for line in range(1, counted.lines):
        before, pressed = dispatcher(), PressedAtLine(line)
        with contextlib.suppress(KeyboardInterrupt):
            pressed.during(faked)
        assert dispatcher() == before, line


LINES = (4_000, 60_000, 140_000, 215_000)


@pytest.mark.parametrize("line", LINES)
def test_an_interrupt_leaves_no_mark(line: int) -> None:
    check("cpu", "aten", line)


def test_a_handler_that_raises_nothing_hears_of_the_signal_once_and_the_call_is_recorded() -> None:
    training, asked, x = Training("cpu"), list[int](), torch.ones(2, 3)
    program: Any = treeplay.jit(training.step, lower="aten", on_refusal="raise")
    program(x)
    signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    try:
        PressedAtLine(60_000).during(lambda: program(x))
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    program(x)
    assert asked == [signal.SIGINT] and program.statistics().replays == 2


class PressedWhereCppAsks(PressedAtLine):
    """Presses Ctrl-C when C++ calls a method of a symbolic number, the given time that it does."""

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        code, caller = frame.f_code, frame.f_back
        if event == "line" and code.co_qualname == "AskedByTorch.is_float" and caller is not None:
            self.lines += caller.f_code.co_name == "__torch_function__"
            if self.lines == self.at and not self.is_pressed:
                self.is_pressed = True
                signal.raise_signal(signal.SIGINT)
        return self.line


@pytest.mark.parametrize("time", [2, 4])
def test_an_interrupt_while_cpp_asks_a_symbolic_number_for_its_kind_comes_a_moment_later(time: int) -> None:
    """It may end the process: C++ makes a value of the number just then."""
    training, x = Training("cpu"), torch.ones(2, 3)
    program: Any = treeplay.jit(training.step, lower="aten", on_refusal="raise")
    program(x)
    pressed = PressedWhereCppAsks(time)
    with pytest.raises(KeyboardInterrupt):
        pressed.during(lambda: program(x))
    assert pressed.is_pressed
    for _ in range(3):
        program(x)
    assert program.statistics().replays >= 1


@pytest.mark.parametrize("calls", [0, 2, 60])
def test_an_interrupt_at_any_line_of_an_eager_call_leaves_nobody_inside(calls: int) -> None:
    """The first call, which is observed, and one of a program that is refused."""

    def make() -> Any:
        jitted: Any = treeplay.jit(lambda x: x * 2 - x.sum().item(), lower="aten")
        for _ in range(calls):
            jitted(torch.ones(2))
        return jitted

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counted = PressedAtLine(-1)
        for _ in range(2):  # imports come first
            jitted, counted = make(), PressedAtLine(-1)
            counted.during(lambda jitted=jitted: jitted(torch.ones(2)))
        for line in range(1, counted.lines, 1 if calls else 41):
            jitted = jitted if calls else make()
            before = surroundings()
            pressed = PressedAtLine(line)
            try:
                pressed.during(lambda jitted=jitted: jitted(torch.ones(2)))
            except KeyboardInterrupt:
                pass
            else:
                assert not pressed.is_pressed, "the signal was lost"
            assert surroundings() == before
            gate = jitted._manager.gate
            assert not gate.threads and gate.closer is None and not jitted._lock._is_owned()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lower", ["aten", "inductor"])
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_an_interrupt_at_any_line_leaves_no_mark(device: str, lower: str, seed: int) -> None:
    rng, lines = random.Random(seed), count_lines(device, lower)
    for _ in range(60):
        check(device, lower, rng.randrange(1, lines))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", ["jit", "differentiable", "capture"])
def test_an_interrupt_at_any_line_of_any_way_in_leaves_no_mark(way: str, seed: int) -> None:
    found, lines = WAYS[way], 0
    for _ in range(2):  # imports come first
        world, counted, x = found.make(found.wrap, "cpu"), PressedAtLine(-1), torch.ones(3)
        world.call(x)
        counted.during(lambda world=world, x=x: world.call(x))
        lines = counted.lines
    rng = random.Random(seed)
    for _ in range(60):
        world, twin = found.make(found.wrap, "cpu"), found.make(lambda program: program, "cpu")
        pressed = PressedAtLine(rng.randrange(1, lines))
        for call in range(1, 6):
            x, before = torch.full((3,), float(call)), surroundings()
            try:
                out = pressed.during(lambda world=world, x=x: world.call(x)) if call == 2 else world.call(x)
            except KeyboardInterrupt:
                if not are_equal(world.state(), twin.state()):  # operators had begun, as they may have in eager
                    twin.call(x)
                    if not are_equal(world.state(), twin.state()):
                        break
            else:
                assert call != 2 or not pressed.is_pressed, f"the signal was lost at line {pressed.at}"
                assert_same(out, twin.call(x))
            assert surroundings() == before
            assert_same(world.state(), twin.state())


@pytest.mark.soak
@pytest.mark.gpu
def test_an_interrupt_while_a_gpu_captures_leaves_no_mark() -> None:
    """The third call captures: whatever is interrupted, the next calls are recorded and right."""
    rng = random.Random(3)
    for _ in range(40):
        total, twin = torch.ones(3, device="cuda"), torch.ones(3, device="cuda")

        def program(x: torch.Tensor, total: torch.Tensor = total) -> torch.Tensor:
            return total.mul_(2).add_(x) - x

        jitted: Any = treeplay.jit(program, lower="aten")
        x = torch.arange(3.0, device="cuda")
        for call in range(7):
            before, was = surroundings(), total.clone()
            try:
                if call == 2:
                    PressedAtLine(rng.randrange(1, 20_000)).during(lambda jitted=jitted, x=x: jitted(x))
                else:
                    jitted(x)
            except KeyboardInterrupt:
                if torch.equal(total, was):
                    continue
            finally:
                assert surroundings() == before
            program(x, twin)
            assert_same(total, twin)
        assert jitted.statistics().keys[0].recordings[-1].launch.stage == "recorded"
