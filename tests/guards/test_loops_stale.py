"""Loops as people write them: what the program does not read costs no recording, what it reads costs few."""

from __future__ import annotations

import collections
import copy
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support import assert_same, assert_same_state, jit

Tensor = torch.Tensor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(8, 2)
        self.temperature = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.tanh(self.norm(self.first(x))))) / self.temperature

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self(x), y)


class Trainer:
    """Counts, logs and keeps what it likes, beside a step that reads little of it."""

    def __init__(self, model: nn.Module, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        self.model = model
        self.optimizer = make(model.parameters())
        self.losses: list[float] = []
        self.history: dict[int, float] = {}
        self.recent: collections.deque[float] = collections.deque(maxlen=5)
        self.epoch = self.step_count = self.best_epoch = 0
        self.best: float | None = None
        self.started = time.time()
        self.average = copy.deepcopy(model)
        self.config = {"name": "run", "note": ""}
        self.seen: set[int] = set()

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model.loss(x, y)  # type: ignore[operator]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def note(self, loss: Tensor) -> None:
        value = float(loss)
        self.losses.append(value)
        self.recent.append(value)
        self.history[self.step_count] = value
        self.seen.add(self.step_count)
        self.step_count += 1
        self.epoch = self.step_count // 10
        if self.best is None or value < self.best:
            self.best, self.best_epoch = value, self.epoch
        self.config["note"] = f"{self.step_count} steps, {value:.3f}"
        self.last_logged = time.time()

    def update_average(self) -> None:
        with torch.no_grad():
            for mean, value in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(value, 0.1)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def _pair(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[Trainer, Trainer]:
    torch.manual_seed(0)
    model = Net()
    return Trainer(model, make), Trainer(copy.deepcopy(model), make)


def _batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3), torch.randn(4, 2)


def _both(jitted: Callable[..., Tensor], eager: Callable[..., Tensor], *args: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides from the same random state; their results agree."""
    state = torch.get_rng_state()
    expected = eager(*args)
    torch.set_rng_state(state)
    found = jitted(*args)
    assert_same(found, expected)
    return found, expected


def _bounded(jitted: Any, most: int) -> None:
    made = jitted.statistics()
    assert made.refusals == 0, jitted.explain()
    assert 1 <= made.recordings <= most, jitted.explain()


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("how", ["bound method", "function", "decorated"])
def test_a_trainer_that_logs_and_counts_beside_its_step(make: Any, how: str) -> None:
    trainer, twin = _pair(make)
    step: Any = jit(trainer.step) if how == "bound method" else jit(lambda x, y: trainer.step(x, y))
    if how == "decorated":

        class Decorated(Trainer):
            step = jit(Trainer.step)

        trainer = Decorated(copy.deepcopy(trainer.model), make)
        step = trainer.step
    for _ in range(30):
        for side, loss in zip((trainer, twin), _both(step, twin.step, *_batch()), strict=True):
            side.note(loss)
            side.update_average()
    assert_same_state((trainer.model, trainer.optimizer), (twin.model, twin.optimizer))
    assert step.statistics().recordings == 1, step.explain()
    assert step.statistics().replays >= 28


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: min(1.0, (k + 1) / 8)),
    "lambda of NumPy": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.5 + 0.5 * np.cos(k / 10)),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20),
    "steps": lambda o: torch.optim.lr_scheduler.StepLR(o, 7, 0.5),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=60),
    "warm-up, then cosine": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=5),
            torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20),
        ],
        [5],
    ),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_loop_with_a_schedule_an_average_and_evaluations(make: Any, schedule: Any) -> None:
    trainer, twin = _pair(make)
    sides = (trainer, twin)
    schedules = [schedule(side.optimizer) for side in sides]
    step, evaluate = jit(trainer.step), jit(trainer.model.forward)
    mean = jit(trainer.average)
    for number in range(30):
        for side, loss in zip(sides, _both(step, twin.step, *_batch()), strict=True):
            side.note(loss)
            side.update_average()
        for each in schedules:
            each.step()
        if number % 5 == 4:
            for side in sides:
                side.model.eval()
                side.average.eval()
            with torch.no_grad():
                for _ in range(3):
                    x, _y = _batch()
                    _both(evaluate, twin.model.forward, x)
                    _both(mean, twin.average, x)
            for side in sides:
                side.model.train()
    assert_same_state((trainer.model, trainer.optimizer, trainer.average), (twin.model, twin.optimizer, twin.average))
    for jitted in (step, evaluate, mean):
        _bounded(jitted, 3)
    assert step.statistics().replays >= 24


def test_a_loop_that_evaluates_and_trains_by_one_method() -> None:
    trainer, twin = _pair(OPTIMIZERS["sgd"])

    def through(side: Trainer) -> Callable[[Tensor, Tensor], Tensor]:
        def program(x: Tensor, y: Tensor) -> Tensor:
            loss = side.model.loss(x, y)  # type: ignore[operator]
            if side.model.training:
                side.optimizer.zero_grad()
                loss.backward()
                side.optimizer.step()
            return loss.detach()

        return program

    jitted, eager = jit(through(trainer)), through(twin)
    for number in range(40):
        for side in (trainer, twin):
            side.model.train(number % 8 < 5)
        _both(jitted, eager, *_batch())
    assert_same_state((trainer.model, trainer.optimizer), (twin.model, twin.optimizer))
    _bounded(jitted, 3)


def test_a_loop_with_a_temperature_that_is_lowered_now_and_then() -> None:
    trainer, twin = _pair(OPTIMIZERS["sgd"])
    step = jit(trainer.step)
    for number in range(30):
        if number in (10, 20):
            for side in (trainer, twin):
                side.model.temperature /= 2
        _both(step, twin.step, *_batch())
    _bounded(step, 3)
    assert_same_state((trainer.model, trainer.optimizer), (twin.model, twin.optimizer))


def test_a_loop_that_freezes_a_part_after_some_steps() -> None:
    trainer, twin = _pair(OPTIMIZERS["sgd"])
    step = jit(trainer.step)
    for number in range(24):
        if number == 12:
            for side in (trainer, twin):
                side.model.first.requires_grad_(False)
                side.optimizer.zero_grad()
        _both(step, twin.step, *_batch())
    _bounded(step, 3)
    assert_same_state((trainer.model, trainer.optimizer), (twin.model, twin.optimizer))


def test_a_loop_that_saves_and_loads_its_best() -> None:
    trainer, twin = _pair(OPTIMIZERS["adamw"])
    step = jit(trainer.step)
    saved: list[Any] = []
    for number in range(24):
        _both(step, twin.step, *_batch())
        if number == 8:
            saved = [copy.deepcopy((s.model.state_dict(), s.optimizer.state_dict())) for s in (trainer, twin)]
        if number == 16:
            for side, (weights, moments) in zip((trainer, twin), saved, strict=True):
                side.model.load_state_dict(weights)
                side.optimizer.load_state_dict(moments)
    _bounded(step, 3)
    assert_same_state((trainer.model, trainer.optimizer), (twin.model, twin.optimizer))


def test_a_loop_with_a_rate_set_by_hand_on_each_step() -> None:
    trainer, twin = _pair(OPTIMIZERS["sgd"])
    step = jit(trainer.step)
    for number in range(30):
        for side in (trainer, twin):
            for group in side.optimizer.param_groups:
                group["lr"] = 0.05 * (1 + math.cos(math.pi * number / 30))
        _both(step, twin.step, *_batch())
    assert_same_state((trainer.model, trainer.optimizer), (twin.model, twin.optimizer))
    assert step.statistics().recordings == 1, step.explain()
    assert step.statistics().replays >= 28
