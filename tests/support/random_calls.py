"""Random programs of calls: several random functions over one world, which changes between calls, beside eager.

    functions   inference, with writes and random draws │ a lookup that may fail │ differentiated by the caller │ a whole step
    actions     call (result kept or dropped, in another thread, without gradients) │ backward │ forget │ change the world │
                fail │ reset
After each action both sides have given the same, or raised the same, and their worlds are equal bit for bit.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import treeplay
from support import assert_alike
from support.random_programs import INSTRUCTIONS, is_valid, run

Step = tuple[int, int, int]
KINDS = ("inference", "inference", "inference", "lookup", "lookup", "differentiable", "step")
MOST_CALLS = 30
_PURE: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda u, w: u * w - 0.5,
    lambda u, w: torch.tanh(u) - w,
    lambda u, w: u.flip(0) * 2 - u,
    lambda u, w: u.cumsum(-1) * 0.25 - w,
    lambda u, w: torch.where(u > w, u * 0.5, w - u),
    lambda u, w: u - u.mean(-1, keepdim=True),
]


class World:
    """What functions reach: weights, memory that they write, and plain values that are set from outside."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4, device=device))
        self.trained = nn.Parameter(torch.linspace(1, -1, 4, device=device))
        self.optimizer = torch.optim.SGD([self.trained], lr=0.125, momentum=0.5)
        self.memory = [torch.ones(2, 4, device=device), torch.full((3,), 0.5, device=device)]
        self.scale, self.is_sharp, self.fails = 1.5, False, False
        self.names = ["first"]

    def tensors(self) -> list[Any]:
        momentum = [dict(state) for state in self.optimizer.state.values()]
        leaves = [self.weight, self.trained]
        return [*leaves, *(leaf.grad for leaf in leaves), *self.memory, momentum]


def make_function(kind: str, steps: list[Step], world: World) -> Callable[[torch.Tensor], Any]:
    """One of the functions of a program, over a world."""

    def pure(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        for which, _, _ in steps:
            x = _PURE[which % len(_PURE)](x, weight)
        return (x * 2 - 1).tanh() if world.is_sharp else x * world.scale

    def inference(x: torch.Tensor) -> Any:
        with torch.no_grad():
            results = run(steps, x.clone(), *world.memory)
            if world.fails:
                raise KeyError("of the user's, after its writes")
            return [*(result.clone() for result in results[-2:]), x * world.scale - len(world.names)]

    def lookup(x: torch.Tensor) -> torch.Tensor:
        at = (x[0] * 8).long().abs() + (9 if world.fails and world.device == "cpu" else 0)
        with torch.no_grad():
            world.memory[1].mul_(0.5).sub_(1)
            found = world.memory[0].flatten()[at % 8 if world.device != "cpu" else at.clamp(0, 9)]
            return found * world.scale - x[0]

    def differentiable(x: torch.Tensor) -> torch.Tensor:
        if world.fails:
            raise KeyError("of the user's")
        return pure(x, world.weight)

    def step(x: torch.Tensor) -> torch.Tensor:
        world.optimizer.zero_grad()
        loss = pure(x, world.trained).pow(2).mean()
        loss.backward()
        if world.fails:
            raise KeyError("of the user's, before its step")
        world.optimizer.step()
        return loss.detach()

    return {"inference": inference, "lookup": lookup, "differentiable": differentiable, "step": step}[kind]


class Side:
    """A world, functions over it, recorded or as they are, and what the user keeps of their results."""

    def __init__(self, kinds: list[tuple[str, list[Step]]], device: str, *, is_recorded: bool) -> None:
        self.world = World(device)
        functions = [make_function(kind, steps, self.world) for kind, steps in kinds]
        self.functions: list[Any] = functions
        if is_recorded:
            self.functions = [treeplay.jit(function, lower="aten") for function in functions]
        self.kinds = [kind for kind, _ in kinds]
        self.is_recorded = is_recorded
        self.kept: list[tuple[Any, Any]] = []  # results, and what they were
        self.waiting: list[torch.Tensor] = []

    def do(self, action: tuple[Any, ...], x: torch.Tensor) -> Any:
        """What an action gives, or the name of what it raised."""
        try:
            return getattr(self, action[0])(x, *action[1:])
        except (KeyError, IndexError, RuntimeError) as error:
            return type(error).__name__

    def call(self, x: torch.Tensor, which: int, way: str, is_kept: bool) -> Any:
        function = self.functions[which]
        if way == "thread":
            (out,) = in_other_threads(function, x, 1)
        elif way == "threads" and self.kinds[which] == "differentiable":  # the one kind that writes nothing
            results = in_other_threads(torch.no_grad()(function), x, 2)
            assert_alike(*results, "what two threads were given")
            out = results[0]
        elif way == "no_grad":
            with torch.no_grad():
                out = function(x)
        else:
            out = function(x)
        leaves = out if isinstance(out, list) else [out]
        values = [leaf.detach().clone() for leaf in leaves]
        if is_kept:
            self.kept.append((leaves, values))
            self.waiting += [leaf for leaf in leaves if leaf.requires_grad]
        return values

    def backward(self, _: torch.Tensor, which: int, is_again: bool) -> None:
        if self.waiting:
            found = self.waiting[which % len(self.waiting)]
            if not is_again:
                self.waiting = [other for other in self.waiting if other is not found]
            found.sum().backward(retain_graph=is_again)

    def forget(self, _: torch.Tensor, which: int) -> None:
        if self.kept:
            self.kept.pop(which % len(self.kept))

    def change(self, _: torch.Tensor, what: str) -> None:
        world = self.world
        if what in ("move", "replace", "clear"):
            self.waiting.clear()  # what a backward makes of a weight that is another one meanwhile is torch's affair
        match what:
            case "move":
                world.weight.data = world.weight.data.flip(0) * 1.5
            case "replace":
                world.weight = nn.Parameter(world.weight.detach() - 0.25)
            case "memory":
                world.memory[1] = world.memory[1] * 0.5 + 1
            case "scale":
                world.scale = 3.5 - world.scale
            case "flag":
                world.is_sharp = not world.is_sharp
            case "names":
                world.names.append("another")
            case "clear":
                world.weight.grad = None

    def fail(self, x: torch.Tensor, which: int) -> Any:
        """A call that raises, if its function does so at all."""
        self.world.fails = True
        try:
            return self.call(x, which, "", False)
        finally:
            self.world.fails = False

    def reset(self, _: torch.Tensor, which: int) -> None:
        if self.is_recorded and which < len(self.functions):
            self.functions[which].reset()
        elif self.is_recorded:
            treeplay.reset()


def in_other_threads(function: Callable[..., Any], x: torch.Tensor, count: int) -> list[Any]:
    """What so many threads are given that call a function at once."""
    found: list[Any] = []

    def work() -> None:
        torch.set_num_threads(1)
        try:
            found.append(function(x))
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in found:
        if isinstance(error, Exception):
            raise error
    return found


def functions_of(draws: random.Random) -> list[tuple[str, list[Step]]]:
    """Kinds of functions with steps that eager takes."""
    found: list[tuple[str, list[Step]]] = []
    count = draws.choice((1, 1, 1, 2))
    while len(found) < count:
        kind = draws.choice(KINDS)
        steps = [
            (draws.randrange(len(INSTRUCTIONS)), draws.randrange(9), draws.randrange(9))
            for _ in range(draws.randint(1, 5))
        ]
        world = World("cpu")
        if is_valid(lambda: make_function(kind, steps, world)(torch.linspace(0, 1, 8).reshape(2, 4))):
            found.append((kind, steps))
    return found


def actions_of(draws: random.Random, functions: int) -> list[tuple[Any, ...]]:
    """Up to 30 calls, most of them with nothing changed in between, and what happens around them."""
    actions: list[tuple[Any, ...]] = []
    changes = ("move", "replace", "memory", "scale", "flag", "names", "clear")
    for _ in range(min(draws.randint(6, MOST_CALLS), draws.randint(6, MOST_CALLS))):
        ways = ("", "", "", "", "", "", "thread", "threads", "no_grad")
        actions.append(("call", draws.randrange(functions), draws.choice(ways), draws.random() < 0.6))
        if draws.random() < 0.45:
            actions.append(("backward", draws.randrange(9), draws.random() < 0.3))
        if draws.random() < 0.2:
            actions.append(("forget", draws.randrange(9)))
        if draws.random() < 0.06:
            actions.append(("change", draws.choice(changes)))
        if draws.random() < 0.04:
            actions.append(("fail", draws.randrange(functions)))
        if draws.random() < 0.02:
            actions.append(("reset", draws.randrange(functions + 1)))
    return actions


def check_program(seed: int, device: str = "cpu") -> Counter[str]:
    """Play one program on both sides; how many of its calls were replayed, and what became of the others."""
    draws = random.Random(seed)
    kinds = functions_of(draws)
    ours, eagers = (Side(kinds, device, is_recorded=is_recorded) for is_recorded in (True, False))
    (sizes,) = draws.choices(((2,), (2, 3), (2, 3, 5, 6, 7)), (10, 3, 1))  # the last is one more than is kept
    counts: Counter[str] = Counter()
    told = f"program {seed}: {kinds}"
    with treeplay.settings.changed(max_recordings_per_program=4):
        for number, action in enumerate(actions_of(draws, len(kinds))):
            x = torch.rand(draws.choice(sizes), 4, generator=torch.Generator().manual_seed(number)).to(device)
            what = f"{told}, action {number}: {action}"
            torch.manual_seed(number)  # of all devices
            expected, after = eagers.do(action, x.clone()), torch.get_rng_state()
            torch.manual_seed(number)
            found = ours.do(action, x.clone())
            assert torch.equal(torch.get_rng_state(), after), f"{what}: the random sequence differs"
            assert_alike(found, expected, what)
            assert_alike(ours.world.tensors(), eagers.world.tensors(), f"{what}: the world")
            counts[action[0]] += 1
    for leaves, values in ours.kept:
        assert_alike([leaf.detach() for leaf in leaves], values, f"{told}: what was kept")
    for function in ours.functions:
        statistics = function.statistics()
        counts["replays"] += statistics.replays
        counts["refusals"] += statistics.refusals
        counts["evictions"] += statistics.dropped
        counts += Counter({f"errors: {error}": 1 for key in statistics.keys for error in key.errors})
        for recording in (recording for key in statistics.keys for recording in key.recordings):
            counts[f"stage {recording.launch.stage}"] += 1
    return counts
