"""Stores to what is chosen by an attribute, to optimizers and modules, and of what the last call left."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from support import state_of
from support.follows import Story, follows

Tensor = torch.Tensor


@follows()
def test_the_object_that_is_stored_to_is_replaced() -> Story:
    holder = types.SimpleNamespace(target=types.SimpleNamespace(value=None))
    kept = [holder.target]

    def program(x: Tensor) -> Tensor:
        holder.target.value = x.sum(0) * 2 - 1
        return x * 2

    yield program, lambda: [target.value for target in kept]
    holder.target = types.SimpleNamespace(value=None)
    kept.append(holder.target)
    yield
    holder.target = kept[0]
    yield


@pytest.mark.parametrize("kind", ["dict", "attribute", "list"])
@follows()
def test_the_name_under_which_is_stored_is_replaced(kind: str) -> Story:
    table: dict[str, Any] = {"a": None, "b": None}
    holder, slots = types.SimpleNamespace(**table), [None, None]
    chosen = types.SimpleNamespace(name="a", index=0)

    def program(x: Tensor) -> Tensor:
        value: Any = x.sum(0) * 2 - 1
        if kind == "dict":
            table[chosen.name] = value
        elif kind == "attribute":
            setattr(holder, chosen.name, value)
        else:
            slots[chosen.index] = value
        return x * 2

    yield program, lambda: [*table.values(), *vars(holder).values(), *slots]
    chosen.name, chosen.index = "b", 1
    yield
    chosen.name, chosen.index = "a", 0
    yield


class Task:
    def __init__(self, scale: float) -> None:
        self.scale = scale


@follows()
def test_a_dict_keyed_by_an_object_that_an_attribute_names() -> Story:
    tasks = [Task(2.0), Task(3.0)]
    rates = {tasks[0]: torch.full((3,), 2.0), tasks[1]: torch.full((3,), 5.0)}
    totals = {task: torch.zeros(3) for task in tasks}
    chosen = types.SimpleNamespace(task=tasks[0])

    def program(x: Tensor) -> Tensor:
        totals[chosen.task].mul_(0.5).add_(x.sum(0))
        return x * rates[chosen.task] - chosen.task.scale

    yield program, lambda: [totals[task] for task in tasks]
    chosen.task = tasks[1]
    yield
    chosen.task = tasks[0]
    yield
    rates[tasks[0]] = torch.full((3,), 9.0)
    yield


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("state", ["fresh", "given", "shared"])
@follows(grad=True, calls=5)
def test_a_parameter_replaced_in_model_and_optimizer(make: Any, state: str) -> Story:
    model = nn.Linear(3, 3)
    optimizer = make(model.parameters())

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    yield step, lambda: list(state_of(model, optimizer))
    old = model.weight
    model.weight = nn.Parameter(torch.ones(3, 3))
    optimizer.param_groups[0]["params"][0] = model.weight
    if state == "given":
        values = {name: value.clone() + 1 for name, value in optimizer.state[old].items() if value is not None}
        optimizer.state[model.weight] = values
    elif state == "shared":
        optimizer.state[model.weight] = optimizer.state[old]
    yield
    optimizer.state[model.weight] = {name: value.clone() * 2 for name, value in optimizer.state[model.weight].items()}
    yield


@follows(grad=True)
def test_a_group_of_parameters_added_to_an_optimizer() -> Story:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.5)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (second(first(x)) - x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    yield step, lambda: list(state_of(first, second, optimizer))
    optimizer.add_param_group({"params": list(second.parameters()), "lr": 0.5})
    yield


@follows(grad=True)
def test_a_mode_that_the_program_sets_and_the_user_sets_back() -> Story:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def program(x: Tensor) -> Tensor:
        model.eval()
        return model(x).detach() * 2 - 1

    yield program, lambda: [*state_of(model), model.training, model[1].training]
    model.train()
    yield
    model[1].train()
    yield


@follows(grad=True, may_refuse=True)
def test_a_learning_rate_that_the_program_sets() -> Story:
    model, holder = nn.Linear(3, 3), types.SimpleNamespace(rate=3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.param_groups[0]["lr"] = holder.rate / 10
        optimizer.zero_grad()
        loss = (model(x) - x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    yield step, lambda: [*state_of(model), optimizer.param_groups[0]["lr"]]
    optimizer.param_groups[0]["lr"] = 5.0
    yield
    holder.rate = 2.0
    yield


@follows(may_refuse=True)
def test_two_tensors_that_change_places_on_each_call() -> Story:
    holder = types.SimpleNamespace(now=torch.ones(3), next=torch.zeros(3))

    def program(x: Tensor) -> Tensor:
        holder.next.copy_(holder.now * 2 - x.sum(0)).tanh_()
        holder.now, holder.next = holder.next, holder.now
        return x * 2 - holder.now

    yield program, lambda: [holder.now, holder.next]
    holder.now = torch.full((3,), 0.5)
    yield


@follows()
def test_a_variable_of_a_function_that_the_program_rebinds_to_what_it_was() -> Story:
    best, last = torch.ones(3), None

    def program(x: Tensor) -> Tensor:
        nonlocal last
        last = best
        return x * 2 - best

    yield program, lambda: [last, last is best]
    last = None
    yield
    best = torch.full((3,), 5.0)
    yield


@follows()
def test_an_iterator_of_ones_own_gives_the_next_item() -> Story:
    class Halving:
        rate = 8.0

        def __iter__(self) -> Halving:
            return self

        def __next__(self) -> float:
            self.rate *= 0.5
            return self.rate

    rates = Halving()

    yield lambda x: x * next(rates) - rates.rate * 3, lambda: rates.rate
    rates.rate = 5.0
    yield
