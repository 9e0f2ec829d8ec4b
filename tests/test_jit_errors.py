"""Exceptions of the program itself, interrupts, and what is left after any failure: what eager would leave."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

import treeplay
from support import assert_same, jit
from support.faults import raising_once
from treeplay.trace.run.tape import TraceTape


class Broken(Exception):
    """The program's own."""


def surroundings() -> tuple[Any, ...]:
    """Everything of the process that a trace touches on its way."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        len(module_hooks._global_forward_pre_hooks),
        len(module_hooks._global_forward_hooks),
        len(optimizer_hooks._global_optimizer_pre_hooks),
        torch.compiler.is_compiling(),
    )


@pytest.fixture(autouse=True)
def surroundings_stay() -> Iterator[None]:
    before = surroundings()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    assert surroundings() == before


@pytest.mark.parametrize("on_refusal", ["raise", "eager"])
@pytest.mark.parametrize("failing", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", [Broken, SystemExit, asyncio.CancelledError])
def test_a_programs_own_exception_is_raised_at_any_call(
    kind: type[BaseException], failing: int, on_refusal: str
) -> None:
    total = torch.zeros(2)
    is_broken = False

    def add(x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        if is_broken:
            raise kind("as told")
        return total.mul_(2) - x

    jitted = jit(add, on_refusal=on_refusal)
    expected = torch.zeros(2)
    for call in range(1, 8):
        is_broken = call == failing
        x = torch.full((2,), float(call))
        if is_broken:
            with pytest.raises(kind, match="as told"):
                jitted(x)
            expected = expected + x
        else:
            assert_same(jitted(x), (expected + x) * 2 - x)
            expected = (expected + x) * 2
        assert_same(total, expected)
    statistics = jitted.statistics()
    assert statistics.replays >= 3 and statistics.refusals == 0


def test_a_process_that_is_told_to_end_in_a_trace_ends_after_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    total = torch.zeros(2)

    def program(x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return total.mul_(2) - x

    jitted = jit(program)
    jitted(torch.ones(2))
    ends = raising_once(SystemExit("told to end"), TraceTape.describe)  # as a signal's handler does
    monkeypatch.setattr(TraceTape, "describe", ends)
    with pytest.raises(SystemExit, match="told to end"):
        jitted(torch.ones(2))
    assert_same(total, torch.full((2,), 6.0))
    assert_same(jitted(torch.ones(2)), torch.full((2,), 13.0))


def test_an_exception_that_depends_on_a_static_argument_is_raised() -> None:
    def scale(x: torch.Tensor, by: int) -> torch.Tensor:
        if by < 0:
            raise ValueError(f"by: {by}")
        return x * by - 1

    jitted = jit(scale)
    for by in (2, -1, 2, -1, 2, -1, 2):
        if by < 0:
            with pytest.raises(ValueError, match="by: -1"):
                jitted(torch.ones(2), by)
        else:
            assert_same(jitted(torch.ones(2), by), torch.ones(2))


def test_an_exception_of_torch_is_the_one_that_eager_raises() -> None:
    jitted = jit(lambda x, y: x @ y, on_refusal="eager")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            jitted(torch.ones(2, 3), torch.ones(2, 3))
    assert_same(jitted(torch.ones(2, 3), torch.ones(3, 2)), torch.full((2, 2), 3.0))


def test_an_exception_in_the_middle_of_a_step_leaves_what_eager_leaves() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    is_broken = False

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        if is_broken:
            raise Broken
        optimizer.step()
        return loss.detach()

    jitted = jit(step)
    for call in range(7):
        is_broken = call in (1, 4)
        x, before = torch.randn(4, 3), [p.detach().clone() for p in model.parameters()]
        expected = torch.autograd.grad(model(x).pow(2).mean(), list(model.parameters()))
        if is_broken:
            with pytest.raises(Broken):
                jitted(x)
            assert_same([p.detach() for p in model.parameters()], before)
        else:
            jitted(x)
        assert_same([p.grad for p in model.parameters()], list(expected))


def test_an_interrupt_while_tracing_leaves_no_mark() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    calls = []

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        if pressed.is_set():
            raise KeyboardInterrupt

    pressed = threading.Event()
    jitted = jit(step)
    jitted(torch.ones(1, 2))
    before = [(p.detach().clone(), p.grad, dict(optimizer.state[p])) for p in model.parameters()]
    groups = [dict(group) for group in optimizer.param_groups]
    pressed.set()
    with pytest.raises(KeyboardInterrupt):
        jitted(torch.ones(1, 2))
    pressed.clear()
    for p, (value, grad, state) in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, value) and p.grad is grad
        assert all(optimizer.state[p][name] is entry for name, entry in state.items())
    assert [dict(group) for group in optimizer.param_groups] == groups
    for _ in range(3):
        jitted(torch.ones(1, 2))
    assert jitted.statistics().replays == 3 and not calls


@pytest.mark.parametrize("thrown", [Broken, KeyboardInterrupt])
def test_an_exception_inside_no_grad_or_a_hook_leaves_the_modes_as_they_were(thrown: Any) -> None:
    def deep(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            torch.rand(3)
            raise thrown

    jitted = jit(deep)
    state = torch.get_rng_state()
    for _ in range(3):
        with pytest.raises(thrown):
            jitted(torch.ones(2))
    torch.set_rng_state(state)


@pytest.mark.parametrize("thrown", [KeyboardInterrupt, None])
def test_a_trace_that_fails_draws_no_random_numbers(thrown: Any) -> None:
    pressed = threading.Event()

    def draw(x: torch.Tensor) -> Any:
        x = x * torch.rand(3) - torch.randn(3)
        if thrown is None:
            return x.tolist()
        if pressed.is_set():
            raise thrown
        return x

    jitted = jit(draw)
    jitted(torch.ones(3))
    pressed.set()
    before = torch.get_rng_state()
    with pytest.raises(thrown or treeplay.Refusal):
        jitted(torch.ones(3))
    assert torch.equal(before, torch.get_rng_state())


def test_a_refusal_leaves_gradients_and_optimizer_state_untouched() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    jitted = jit(step)
    jitted(torch.ones(1, 2))
    before = [(p.detach().clone(), p.grad, optimizer.state[p]["step"].clone()) for p in model.parameters()]
    for _ in range(3):
        with pytest.raises(treeplay.Refusal):
            jitted(torch.ones(1, 2))
    for p, (value, grad, steps) in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, value) and p.grad is grad and optimizer.state[p]["step"] == steps
    assert all(type(group["lr"]) is float for group in optimizer.param_groups)


def test_nested_jit_is_part_of_the_outer_program() -> None:
    weight = torch.randn(3)
    inner = jit(lambda x: x * weight - 1)
    model = jit(nn.Linear(3, 3))
    outer = jit(lambda x: inner(model(x)) * 2)
    with torch.no_grad():
        for call in range(5):
            weight.add_(call)
            x = torch.randn(2, 3)
            assert_same(outer(x), (model.__wrapped__(x) * weight - 1) * 2)
    assert outer.statistics().replays == 4 and inner.statistics().calls == 0


def test_threads_that_call_one_program_take_turns() -> None:
    total = torch.zeros(4)

    def add(x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return x * 3 - 1

    jitted = jit(add)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(25):
            x = torch.full((4,), float(number))
            if not torch.equal(jitted(x), x * 3 - 1):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert_same(total, torch.full((4,), 25.0 * sum(range(8))))
    assert jitted.statistics().calls == 200


def test_another_threads_optimizer_may_step_while_this_one_traces() -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer, foreign = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other))
    failures: list[BaseException] = []

    def elsewhere() -> None:
        try:
            other(torch.ones(1, 2)).sum().backward()
            foreign.step()
        except BaseException as error:
            failures.append(error)

    runs: list[Callable[[], None]] = []

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.mse_loss(model(x), x[:, :1]).backward()
        for run in runs:
            run()
        optimizer.step()

    def in_a_thread() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    runs.append(in_a_thread)
    jitted = jit(step, on_refusal="eager")
    with pytest.warns(UserWarning, match="starts a thread"):
        for _ in range(3):
            jitted(torch.ones(1, 2))
    assert not failures


def test_the_settings_refuse_what_they_do_not_know() -> None:
    with pytest.raises(treeplay.ArgumentError, match="no such setting"):
        treeplay.settings.speed = 3  # type: ignore[attr-defined]
    with pytest.raises(treeplay.ArgumentTypeError, match="expected int, found str"):
        treeplay.settings.max_rerecordings = "3"  # type: ignore[assignment]
    with pytest.raises(treeplay.ArgumentError, match="at least 1"):
        treeplay.settings.max_rerecordings = 0
    before = treeplay.settings.max_rerecordings
    with pytest.raises(treeplay.ArgumentError), treeplay.settings.changed(max_rerecordings=3, nonsense=1):
        pass
    assert treeplay.settings.max_rerecordings == before


def test_threads_that_record_programs_of_their_own_do_not_disturb_each_other() -> None:
    wrong: list[Any] = []

    def work(number: int) -> None:
        model = nn.Linear(4, 4)
        for scale in range(6):
            jitted = treeplay.jit(lambda x, scale=scale: model(x).detach() * scale, lower="aten")
            for _ in range(4):
                x = torch.randn(2, 4)
                if not torch.equal(jitted(x), model(x).detach() * scale):
                    wrong.append(number)
            facts = jitted.statistics()
            if facts.refusals or facts.recordings != 1:
                wrong.append([(key.refusal, key.rerecorded_because) for key in facts.keys])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_random_numbers_drawn_by_another_thread_refuse_nothing() -> None:
    done = threading.Event()

    def draw() -> None:
        while not done.is_set():
            torch.randn(3)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        jitted = jit(lambda x: x + torch.zeros(3).uniform_() * 0)
        for _ in range(4):
            assert_same(jitted(torch.ones(3)), torch.ones(3))
    finally:
        done.set()
        thread.join()
    assert jitted.statistics().replays == 3


def test_a_program_that_waits_for_a_thread_that_records_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeplay.trace.turn._MOST_SECONDS_WAITED", 0.05)
    inner = treeplay.jit(lambda x: x * 2, lower="aten")
    inner(torch.ones(2))

    def outer(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=inner, args=(torch.ones(2),))
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
        return x + 1

    jitted = jit(outer, on_refusal="eager")
    with pytest.warns(UserWarning, match="starts a thread"):
        for _ in range(3):
            assert_same(jitted(torch.ones(2)), torch.full((2,), 2.0))
    assert_same(inner(torch.ones(2)), torch.full((2,), 2.0))
    assert inner.statistics().refusals == 0


def test_a_backward_into_the_callers_graph_is_refused_and_left_alone() -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other.load_state_dict(model.state_dict())
    jitted = treeplay.jit(lambda loss: loss.backward(), lower="aten")
    with pytest.warns(UserWarning, match="made before the call"):
        for _ in range(4):
            x = torch.randn(4, 3)
            jitted(model(x).pow(2).sum())
            other(x).pow(2).sum().backward()
            assert_same(model.weight.grad, other.weight.grad)
            assert type(model.weight.grad) is torch.Tensor


def test_a_gradient_with_respect_to_a_tensor_of_the_callers_graph_is_recorded() -> None:
    jitted = jit(lambda x: torch.autograd.grad((x**3).sum(), x)[0])
    for _ in range(4):
        x = torch.randn(3, requires_grad=True) * 2
        assert_same(jitted(x), (3 * x**2).detach())
        x.sum().backward()  # the caller's graph is whole


@pytest.mark.parametrize("write", [lambda x: x.mul_(2), lambda x: x[:1].mul_(2), lambda x: torch.sin(x, out=x)])
def test_Wplus4_a_write_to_a_leaf_that_needs_a_gradient_raises_what_eager_raises(write: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        write(x)
        return x - 1

    jitted = jit(program, on_refusal="raise")
    for call in range(1, 7):
        x = torch.full((2,), float(call))
        if call % 3 == 0:  # between calls that are right
            leaf = x.requires_grad_()
            with pytest.raises(RuntimeError) as eagers:
                program(leaf)
            with pytest.raises(RuntimeError) as ours:
                jitted(leaf)
            assert str(ours.value) == str(eagers.value)
            assert torch.equal(leaf.detach(), torch.full((2,), float(call))) and leaf._version == 0 and leaf.is_leaf
        else:
            expected = program(x.clone())
            assert_same(jitted(x), expected)
