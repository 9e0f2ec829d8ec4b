"""Tiers of a program that the caller differentiates: operators serve until forward and backward are compiled."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import the_recording
from support.gradients import PROGRAMS, Pair, state
from support.gradients import train as train_once
from treeplay.backend.inner import boxed, without_views
from treeplay.observe import internal_errors
from treeplay.record import front
from treeplay.tree.tiers import compile_thread

pytestmark = pytest.mark.programs


class Inductor:
    """Stands in for Inductor: takes until `ready`, and gives what runs the same operators and counts its calls."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.error: Exception | None = None
        self.compiled: list[tuple[str, str]] = []
        self.calls: Counter[str] = Counter()

    def __call__(self, module: Any, inputs: Any, options: Any, flat: Any, noted: Any) -> Any:
        self.compiled.append((flat.direction, threading.current_thread().name))
        assert self.ready.wait(30)
        if self.error is not None:
            raise self.error
        run = boxed(without_views(module))

        def counted(args: list[Any]) -> Any:
            self.calls[flat.direction] += 1
            return run(args)

        return counted, noted


@pytest.fixture
def inductor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inductor]:
    made = Inductor()
    monkeypatch.setattr("treeplay.backend.inner._inductor", made)
    monkeypatch.setattr(front, "find_compiler", lambda: type("Compiler", (), {"path": "somewhere"})())
    with treeplay.settings.changed(tiers="background"):
        yield made
        made.ready.set()
        assert compile_thread.wait(30)


def a_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def train(model: Any, twin: nn.Module, number: int) -> None:
    """One call and its gradients, which are eager's."""
    found = []
    for run in (model, twin):
        torch.manual_seed(number)
        x = torch.randn(3, 4, requires_grad=True)
        for p in run.parameters():
            p.grad = None
        y = run(x)
        (y * torch.randn(3, 2)).sum().backward()
        found.append([y.detach(), x.grad, *(p.grad for p in run.parameters())])
    torch.testing.assert_close(*found)


def test_operators_serve_until_each_graph_is_compiled(inductor: Inductor) -> None:
    jitted: Any = treeplay.jit(a_model())
    twin = copy.deepcopy(a_model())
    for number in range(6):
        train(jitted, twin, number)
    assert the_recording(jitted).lowering == "aten" and not inductor.calls
    assert "in the background" in the_recording(jitted).tier
    inductor.ready.set()
    assert compile_thread.wait(30)
    train(jitted, twin, 6)
    assert inductor.calls == {"forward": 1}
    assert compile_thread.wait(30)
    train(jitted, twin, 7)
    assert inductor.calls == {"forward": 2, "backward": 1}
    found = the_recording(jitted)
    assert found.lowering == "inductor" and "took the place" in found.tier and found.tier in jitted.explain()
    background = "treeplay compiles"
    assert inductor.compiled == [("forward", background), ("backward", background)]
    statistics = jitted.statistics()
    assert (statistics.recordings, statistics.replays) == (1, 7)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ("dropout", "transformer")])  # they draw
def test_both_tiers_give_eagers_gradients(inductor: Inductor, name: str) -> None:
    torch.manual_seed(1)
    make, owners = PROGRAMS[name]
    pair = Pair(make, *owners(), lower="auto")
    for number in range(8):
        if number == 3:
            inductor.ready.set()
        if inductor.ready.is_set():
            assert compile_thread.wait(30)
        pair.act(train_once, torch.randn(4, 3, requires_grad=number % 2 == 0))
    for found, expected in zip(state(pair.owners), state(pair.eager_owners), strict=True):
        torch.testing.assert_close(found, expected)
    assert inductor.calls["forward"] and inductor.calls["backward"]


def test_a_backward_belongs_to_the_forward_that_ran(inductor: Inductor) -> None:
    jitted: Any = treeplay.jit(a_model())
    twin = copy.deepcopy(a_model())
    for number in range(3):
        train(jitted, twin, number)
    x = torch.randn(3, 4)
    early = jitted(x)
    inductor.ready.set()
    assert compile_thread.wait(30)
    late = jitted(x)
    ours, theirs = list(jitted.parameters()), list(twin.parameters())
    expected = torch.autograd.grad(twin(x).pow(2).sum(), theirs)
    torch.testing.assert_close(torch.autograd.grad(late.pow(2).sum(), ours), expected)
    torch.testing.assert_close(torch.autograd.grad(early.pow(2).sum(), ours), expected)
    assert compile_thread.wait(30)
    torch.testing.assert_close(torch.autograd.grad(jitted(x).pow(2).sum(), ours), expected)


def test_second_derivatives(inductor: Inductor) -> None:
    def energy(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x - 2).sum()

    jitted: Any = treeplay.jit(energy)
    inductor.ready.set()
    for number in range(6):
        found = []
        for run in (jitted, energy):
            x = torch.full((3,), float(number), requires_grad=True)
            (gradient,) = torch.autograd.grad(run(x), x, create_graph=True)
            found.append(torch.autograd.grad((gradient * 3).sum(), x)[0])
        torch.testing.assert_close(*found)
        assert compile_thread.wait(30)


def test_what_cannot_be_compiled_goes_on_as_it_is(inductor: Inductor) -> None:
    inductor.error = KeyError("told to")
    inductor.ready.set()
    jitted: Any = treeplay.jit(a_model())
    twin = copy.deepcopy(a_model())
    with pytest.warns(UserWarning, match="error of its own|of treeplay's own"):
        for number in range(6):
            train(jitted, twin, number)
            assert compile_thread.wait(30)
    assert the_recording(jitted).lowering == "aten" and internal_errors()


def test_a_backward_that_cannot_be_compiled_runs_its_operators(inductor: Inductor) -> None:
    inductor.ready.set()
    jitted: Any = treeplay.jit(a_model())
    twin = copy.deepcopy(a_model())
    train(jitted, twin, 0)
    train(jitted, twin, 1)
    assert compile_thread.wait(30)
    inductor.error = KeyError("told to")
    with pytest.warns(UserWarning, match="error of its own"):
        for number in range(2, 5):
            train(jitted, twin, number)
            assert compile_thread.wait(30)
    assert inductor.calls == {"forward": 3} and the_recording(jitted).lowering == "inductor"


def test_a_program_that_is_dropped_is_kept_by_no_compilation(inductor: Inductor) -> None:
    model = a_model()
    jitted: Any = treeplay.jit(model)
    for _ in range(4):
        jitted(torch.ones(2, 4)).sum().backward()
    gone, weight = weakref.ref(jitted), weakref.ref(next(model.parameters()))
    del jitted
    assert gone() is None
    inductor.ready.set()
    assert compile_thread.wait(30)
    del model
    gc.collect()
    assert weight() is None


def test_one_tier_if_asked_for(inductor: Inductor) -> None:
    inductor.ready.set()
    jitted: Any = treeplay.jit(a_model(), lower="inductor")
    twin = copy.deepcopy(a_model())
    for number in range(4):
        train(jitted, twin, number)
    assert [thread for _, thread in inductor.compiled] == ["MainThread"] * 2
