"""A trace leaves no mark: what a program can reach is the same before and after it, whether it succeeds or not."""

from __future__ import annotations

import collections
import contextlib
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from treeplay.errors import Refusal
from treeplay.trace.call import Call
from treeplay.trace.jit import trace
from treeplay.values.flatten import flatten


class World:
    """State of every kind that a program may touch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1, amsgrad=True)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.hidden: Any = torch.zeros(2)
        self.table: dict[str, Any] = {"a": torch.ones(2), "n": 3}
        self.items: list[Any] = [torch.ones(2)]
        self.queue: collections.deque[Any] = collections.deque([torch.ones(2)], maxlen=2)
        self.bag: set[Any] = {1}
        self.space = SimpleNamespace(count=0, best=None)
        self.generator = torch.Generator().manual_seed(4)
        F.mse_loss(self.model(torch.randn(4, 3)), torch.randn(4, 2)).backward()
        self.optimizer.step()

    def train(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        return loss.detach()


def slots(world: World, x: torch.Tensor) -> Any:
    world.hidden = world.hidden * 2 + x.sum()
    world.table["a"] = world.hidden - 1
    world.table["new"] = world.hidden + 1
    world.items[0] = x.mean()
    world.space.best = x.max()
    world.items[0].add_(1)
    x.mul_(2)
    return x


def python_state(world: World, x: torch.Tensor) -> Any:
    world.space.count += 1
    world.table["n"] = 4
    world.table.pop("a")
    world.items.append(5)
    world.bag.add(2)
    world.queue.append(x * 2)
    world.scheduler.step()
    world.model.eval()
    return x * 2


def raising(world: World, x: torch.Tensor) -> Any:
    world.train(x)
    slots(world, x)
    raise ValueError


def interrupted(world: World, x: torch.Tensor) -> Any:
    world.train(x)
    python_state(world, x)
    raise KeyboardInterrupt


PROGRAMS: dict[str, Callable[[World, torch.Tensor], Any]] = {
    "a step": lambda world, x: world.train(x),
    "gradients to none": lambda world, x: (world.train(x), world.optimizer.zero_grad(set_to_none=True)),
    "gradients zeroed": lambda world, x: (world.train(x), world.optimizer.zero_grad(set_to_none=False)),
    "no zeroing": lambda world, x: world.model(x).sum().backward(),
    "inference": lambda world, x: world.model(x).detach(),
    "slots": slots,
    "python state": python_state,
    "random numbers": lambda world, x: x * torch.rand(3) + torch.rand(3, generator=world.generator),
    "python random": lambda world, x: x * random.random(),
    "seeding": lambda world, x: x * torch.manual_seed(3).initial_seed(),
    "reads a value": lambda world, x: (world.train(x), x.sum().item()),
    "a mask": lambda world, x: (world.train(x), x[x > 0]),
    "raises": raising,
    "interrupted": interrupted,
    "an optimizer dropped": lambda world, x: world.optimizer.state.clear() or world.train(x),
    "a parameter replaced": lambda world, x: setattr(world.model[0], "bias", nn.Parameter(torch.ones(4))),
    "a module replaced": lambda world, x: world.model.append(nn.ReLU()),
    "a hook": lambda world, x: world.model[0].weight.register_hook(lambda grad: grad),
    "in place with history": lambda world, x: world.hidden.add_(world.model(x).sum()),
    "grad mode": lambda world, x: torch.set_grad_enabled(False) and x,
}


def everything(world: World, x: torch.Tensor) -> list[Any]:
    """Values, versions, identities and structure of all that can be reached, as plain comparable values."""
    found: list[Any] = []
    seen: set[int] = set()

    def look(value: Any, path: str) -> None:
        if isinstance(value, torch.Tensor):
            found.append((path, id(value), value._version, value.requires_grad, value.grad_fn, value.detach().tolist()))
            if value.is_leaf:
                found.append((path + ".grad", id(value.grad), None if value.grad is None else value.grad.tolist()))
            return
        if isinstance(value, torch.Generator):
            found.append((path, value.get_state().tolist()))
        if (
            id(value) in seen
            or isinstance(value, (type, torch.Generator))
            or callable(getattr(value, "__func__", None))
        ):
            return
        seen.add(id(value))
        entries: Any = ()
        if isinstance(value, dict):
            entries = value.items()
        elif isinstance(value, (list, tuple, collections.deque)):
            entries = enumerate(value)
        elif hasattr(value, "__dict__") and not isinstance(value, type(look)):
            entries = vars(value).items()
        else:
            found.append((path, repr(value)))
        for key, entry in entries:
            look(entry, f"{path}.{key if isinstance(key, (str, int)) else id(key)}")

    look(world, "world")
    look(x, "x")
    return [*found, torch.get_rng_state().tolist(), random.getstate(), torch.is_grad_enabled()]


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_trace_leaves_no_mark(what: str) -> None:
    world, x = World(), torch.randn(3, 3) if "random" not in what else torch.randn(3)
    program = PROGRAMS[what]
    before = everything(world, x)
    leaves, structure = flatten(((x,), {}))
    with contextlib.suppress(Refusal, KeyboardInterrupt):
        trace(lambda v: program(world, v), Call((x,), {}, leaves, structure))
    after = everything(world, x)
    assert [entry[0] for entry in after[:-3]] == [entry[0] for entry in before[:-3]]
    for old, new in zip(before, after, strict=True):
        assert old == new


@pytest.mark.parametrize("what", [what for what in PROGRAMS if what not in ("raises", "interrupted")])
def test_tracing_twice_gives_the_same_graph(what: str) -> None:
    world, x = World(), torch.randn(3, 3) if "random" not in what else torch.randn(3)
    leaves, structure = flatten(((x,), {}))
    call, texts = Call((x,), {}, leaves, structure), []
    for _ in range(2):
        try:
            texts.append(str(trace(lambda v: PROGRAMS[what](world, v), call).graph))
        except Refusal as refusal:
            texts.append(str(refusal))
    assert texts[0] == texts[1]
