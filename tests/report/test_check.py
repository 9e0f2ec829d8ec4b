"""`treeplay.check`: all that is in the way of a program at once, each with its line and its fix."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay

_model = torch.nn.Linear(3, 3)


def logs_a_loss(x: torch.Tensor) -> torch.Tensor:
    loss = _model(x).sum()
    if loss.item() > 1e9:  # FIRST
        raise RuntimeError("diverged")
    name = f"loss {loss:.3f}"  # SECOND
    started = time.time()  # not named by a line of its own, but by its function
    scale = x.numpy().max()  # THIRD
    return x * float(scale) - len(name) + (started < 0)


def lists(x: torch.Tensor) -> torch.Tensor:
    best = max((x * 2).reshape(3, 1).tolist())  # FIRST
    return x * best[0] - max(x.argsort().tolist()) - (x - 1).sum().item()  # SECOND


class _Counts:
    steps = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        print(float(x.sum()))  # FIRST
        return x * self.steps  # SECOND


def draws_on_the_host(x: torch.Tensor) -> torch.Tensor:
    keep = x.sum().item() - random.random()  # FIRST
    return x * keep - 1  # SECOND


def takes_eagers_way(x: torch.Tensor) -> torch.Tensor:
    if x.sum().item() > 100:  # FIRST
        return x * float(x[0])  # SECOND
    return x.tolist()


def loops_until(x: torch.Tensor) -> torch.Tensor:
    while x.max() < 10:  # FIRST
        x = x * 3 - 1
    return x - int(x.argmax())  # SECOND


def swallows(x: torch.Tensor) -> torch.Tensor:
    try:
        x = x * x.sum().item()  # FIRST
    except Exception:
        x = x - 1
    return x * x.tolist()[0]  # SECOND


def _lines(program: Callable[..., Any]) -> list[int]:
    lines, first = inspect.getsourcelines(program if inspect.isfunction(program) else type(program))
    return [first + at for at, text in enumerate(lines) if text.rstrip().endswith(("FIRST", "SECOND", "THIRD"))]


@pytest.mark.parametrize(
    ("program", "x"),
    [
        (logs_a_loss, torch.ones(3)),
        (takes_eagers_way, torch.full((3,), 50.0)),
        (loops_until, torch.ones(3)),
        (swallows, torch.ones(3)),
        (lists, torch.ones(3)),
        (_Counts(), torch.ones(3)),
        (draws_on_the_host, torch.ones(3)),
    ],
)
def test_all_that_is_in_the_way_is_found_at_once(program: Callable[..., Any], x: torch.Tensor) -> None:
    before = x.clone()
    outcome = treeplay.check(program, x)
    places = [reason.where.called_from or reason.where for reason in outcome.reasons if reason.where is not None]
    lines = {place.line for place in places}
    assert not outcome and lines >= {*_lines(program)} and len(outcome.reasons) <= len(_lines(program)) + 1
    assert any("generator" in reason.why for reason in outcome.reasons) is (program is draws_on_the_host)
    assert all(reason.advice for reason in outcome.reasons) and torch.equal(x, before)
    assert ("time.time" in str(outcome)) is (program is logs_a_loss)


def test_what_an_optimizer_reads_is_not_taken_for_what_the_program_reads() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.5)
    seen = []

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())  # FIRST
        return x * model.weight.tolist()[0][0]  # SECOND

    outcome = treeplay.check(step, torch.ones(2, 3))
    assert {reason.where.line for reason in outcome.reasons} == {*_lines(step)}
    assert len(seen) == 1


def test_jit_and_check_agree_on_the_first() -> None:
    jitted = treeplay.jit(loops_until, lower="aten", on_refusal="raise")
    jitted(torch.ones(3))
    with pytest.raises(treeplay.Refusal) as caught:
        jitted(torch.ones(3))
    assert treeplay.check(jitted, torch.ones(3)).reasons[0] == caught.value.reason and not caught.value.others


def test_a_program_without_blockers_is_fine() -> None:
    def program(x: torch.Tensor, *, scale: float) -> torch.Tensor:
        print("hello")
        return _model(x) * scale

    with torch.no_grad():
        outcome = treeplay.check(program, torch.ones(2, 3), scale=2.0)
    assert outcome and outcome.reasons == ()
    assert str(outcome).startswith("can be recorded with ") and "print: " in str(outcome)


def test_what_is_no_program_is_named() -> None:
    not_called: Any = torch.ones(2)
    with pytest.raises(treeplay.ArgumentTypeError, match="check: expected a callable or a module, found Tensor"):
        treeplay.check(not_called)


def test_what_the_program_raises_is_raised() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        treeplay.check(program, torch.ones(2))


def test_the_program_ran_once_with_its_effects_and_the_trace_had_none() -> None:
    total = torch.zeros(())

    def program(x: torch.Tensor) -> torch.Tensor:
        total.add_(x.sum())
        x.tolist().append(1)
        values = x.numpy()
        values += 1
        return total - 1

    x = torch.ones(2)
    treeplay.check(program, x)
    assert total.item() == 2 and x.tolist() == [2, 2]


def test_what_a_program_counts_is_not_in_the_way() -> None:
    class Counter:
        def __init__(self) -> None:
            self.calls, self.last = 0, 1.0

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.last *= 0.5
            return x * self.calls - self.last

    counter = Counter()
    assert treeplay.check(counter, torch.ones(2)) and (counter.calls, counter.last) == (1, 0.5)

    def needs(x: torch.Tensor) -> torch.Tensor:
        counter.calls += 1
        return x.repeat(counter.calls)

    found = treeplay.check(needs, torch.ones(2))
    assert not found and "counter.calls" in str(found)
