"""What a program stores is stored by replays too, also where the second call found it stored already; and where it is read."""

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


class Holder:
    """A place for everything; its state is compared by identity where an object is meant, by value elsewhere."""

    last: Any = None

    def __init__(self) -> None:
        self.best = torch.full((3,), 2.0)
        self.rate = 3.0
        self.name = "best"
        self.log: Any = {}
        self.slots: Any = [None, None]
        self.seen: set[Any] = set()

    def state(self) -> list[Any]:
        found = [self.last, *self.slots, *(self.log.values() if isinstance(self.log, dict) else [])]
        shown = [sorted(self.log), sorted(map(str, self.seen)), sorted(vars(self)), self.rate]
        return [*(value is self.best for value in found), *found, *map(str, shown)]


def _setattr(h: Any, value: Any) -> None:
    setattr(h, "la" + "st", value)


def _attribute(h: Any, value: Any) -> None:
    h.last = value


def _item(h: Any, value: Any) -> None:
    h.log["best"] = value


def _update(h: Any, value: Any) -> None:
    h.log.update(best=value)


def _vars(h: Any, value: Any) -> None:
    vars(h)["last"] = value


def _index(h: Any, value: Any) -> None:
    h.slots[1] = value


def _slice(h: Any, value: Any) -> None:
    h.slots[:] = [value, value]


def _class_attribute(h: Any, value: Any) -> None:
    type(h).last = value


STORES: dict[str, Callable[[Any, Any], Any]] = {
    "attribute": _attribute,
    "setattr": _setattr,
    "vars": _vars,
    "object.__setattr__": lambda h, value: object.__setattr__(h, "last", value),
    "item": _item,
    "update": _update,
    "setdefault": lambda h, value: h.log.setdefault("best", value),
    "dunder": lambda h, value: h.log.__setitem__("best", value),
    "union": lambda h, value: h.log.__ior__({"best": value}),
    "index": _index,
    "slice": _slice,
    "class": _class_attribute,
}


def _forget(h: Any) -> None:
    h.log.clear()
    h.slots[:] = [None, None]
    h.last = None
    type(h).last = None


def _rebind(h: Any) -> None:
    h.log, h.slots, h.last = {}, [None, None], 5.0


def _replace(h: Any) -> None:
    h.best, h.rate = torch.full((3,), 7.0), 9.0


FORGET = {"forgotten": _forget, "rebound": _rebind, "another value": _replace}


@pytest.mark.parametrize("forget", FORGET.values(), ids=FORGET)
@pytest.mark.parametrize("what", ["best", "rate", "name"])
@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
@follows()
def test_a_store_that_changes_nothing_in_the_second_call(
    store: Callable[[Any, Any], Any], what: str, forget: Callable[[Any], None]
) -> Story:
    holder: Any = type("Own", (Holder,), {})()

    def program(x: Tensor) -> Tensor:
        store(holder, getattr(holder, what))
        return x * 2 - holder.best

    yield program, holder.state
    for _ in range(2):
        forget(holder)
        yield


@pytest.mark.parametrize("between", [None, 5.0, "another tensor", "deleted"])
@follows()
def test_the_last_result_kept_in_an_attribute(between: Any) -> Story:
    holder = Holder()

    def program(x: Tensor) -> Tensor:
        y = x * 2 - holder.best
        holder.last = y.sum(0)
        return y

    yield program, holder.state
    if between == "deleted":
        del holder.last
    else:
        holder.last = torch.ones(3) if between == "another tensor" else between
    yield


@follows(may_refuse=True)
def test_an_argument_kept_in_an_attribute() -> Story:
    holder = Holder()
    given: list[Any] = []

    def program(x: Tensor) -> Tensor:
        holder.last = x
        return x * 2 - 1

    def state() -> list[Any]:
        given.append(holder.last)
        return [holder.last, len({id(value) for value in given})]

    yield program, state
    holder.last = None
    yield


@follows()
def test_a_state_that_starts_anew_from_none() -> Story:
    holder = Holder()

    def program(x: Tensor) -> Tensor:
        before = torch.zeros(3) if holder.last is None else holder.last
        holder.last = torch.tanh(before * 2 - x.sum(0))
        return x * 2 - holder.last

    yield program, holder.state
    holder.last = None
    yield
    holder.last = torch.ones(3)
    yield


@follows()
def test_a_flag_that_the_program_sets() -> Story:
    holder = types.SimpleNamespace(is_ready=True)

    def program(x: Tensor) -> Tensor:
        before = 2.0 if holder.is_ready else 3.0
        holder.is_ready = True
        return x * before - 1

    yield program, lambda: holder.is_ready
    holder.is_ready = False
    yield
    holder.is_ready = False
    yield


@follows()
def test_a_set_that_the_program_adds_to() -> Story:
    seen: set[str] = set()

    def program(x: Tensor) -> Tensor:
        seen.add("x")
        return x * len(seen) - 1

    yield program, lambda: sorted(seen)
    seen.clear()
    yield
    seen.add("y")
    yield
    seen.remove("x")
    yield


@pytest.mark.parametrize("how", ["pop", "del", "clear", "delattr"])
@follows()
def test_what_the_program_takes_away(how: str) -> Story:
    holder = Holder()
    holder.log["key"] = holder.best

    def program(x: Tensor) -> Tensor:
        if how == "pop":
            holder.log.pop("key", None)
        elif how == "del" and "key" in holder.log:
            del holder.log["key"]
        elif how == "clear":
            holder.log.clear()
        elif how == "delattr" and "last" in vars(holder):
            del holder.last
        return x * 2 - 1

    yield program, holder.state
    holder.log["key"] = holder.best
    holder.last = 3.0
    yield
    holder.log["key"] = 5.0
    yield


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
    model, holder = nn.Linear(3, 3), Holder()
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
