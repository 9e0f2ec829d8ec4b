"""Random worlds, programs that read and write them, and changes between calls: a jitted world against an eager twin.

    outcome = run_world(seed)      # the same for the same seed
    outcome = run_world(seed, "compile")   # through torch.compile's backend; "dynamo": through Dynamo alone
    print(make_world(seed))        # its source and its events
    print(shrink(make_world(seed)))

Both worlds are made by running the same text, and told the same events. After each call the results and all that the program
stores are compared: any difference is stale. Nothing here is random but by the seed.
"""

from __future__ import annotations

import contextvars
import linecache
import math
import random
import sys
import sysconfig
import textwrap
import types
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch

import treeplay
from support.quick import seed
from support.world_objects import KINDS
from support.world_values import Maker, Value, lines
from treeplay.torch_compile import backend

_PRELUDE = """
import copy, contextvars, enum, functools, math, threading, types, weakref
from argparse import Namespace
from array import array
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from functools import partial
from operator import attrgetter, methodcaller
from types import SimpleNamespace
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

Pair = namedtuple("Pair", "first second")
SHARED = 1.25
SAME = torch.full((2,), 0.75)

class Mode(enum.Enum):
    ADD = 1
    TAKE = 2

class Table(dict):
    def __missing__(self, key):
        return 0.1 * len(key)

class Plain:
    def __init__(self, a):
        self.a = a

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.drop = nn.Dropout(0.5)
        self.scale = 2.0
        self.register_buffer("mask", torch.full((2,), 0.5))
    def forward(self, x):
        weight = getattr(self.inner, "weight", x)
        return self.inner(x.to(weight.dtype)).float() * num(self.scale) - self.mask.float()
    def encode(self, x):
        return self.forward(x) * (0.5 if self.training else 0.25) - num(self.scale)

def num(v):
    if v is None:
        return 0.125
    if isinstance(v, bool):
        return 1.5 if v else 0.75
    if isinstance(v, (str, bytes)):
        return 0.25 * len(v) + 0.5
    if isinstance(v, torch.Tensor):
        return 0.5 * v.dim() + 0.25
    if isinstance(v, Mode):
        return 0.1 * v.value
    if isinstance(v, complex):
        return v.real - 2 * v.imag
    if isinstance(v, int):
        return v + 0.03125
    if isinstance(v, float):
        return float(v) if v else math.copysign(0.2, v)
    if isinstance(v, (tuple, list, set, dict, deque, range)):
        return 0.375 * len(v) + sum(0.5 * w for w in v if isinstance(w, float))
    if isinstance(v, slice):
        return 0.3 * v.stop
    try:
        return float(v)
    except (TypeError, ValueError):
        return 2.25

def named(x, a=0.5, **more):
    x = x * num(a) - 1
    for key, value in more.items():
        x = x * 0.5 - num(value) - len(key)
    return x

def attempt(read):
    try:
        return num(read())
    except (AttributeError, KeyError, IndexError, NameError):
        return 0.45

def tensor_or(t):
    return t if isinstance(t, torch.Tensor) else num(t)

def once(read):
    yield read()

class Out:
    kept = None

out, log, noise = Out(), {}, []
"""
_LIBRARY = """
import math
GAIN = 1.75
TABLE = {"a": 0.5}
def gain(k=1.5):
    return float(k if isinstance(k, (int, float)) else 3) * (GAIN if isinstance(GAIN, (int, float)) else 0.5)
def indirect():
    return gain() - len(TABLE)
class Thing:
    rate = 0.75
    def __init__(self):
        self.own = GAIN
    def value(self):
        return 0.5 if isinstance(self.rate, str) or self.own is None else 0.25
"""
_STORES = lines("""
    out.a = x.sum()
    out.b = READ
    setattr(out, "b", READ)
    Out.b = READ
    out.kept = SAME
    out.flag = True
    log["k"] = READ
    log["x"] = x * 2
    log["kept"] = SAME
    log.setdefault("k", READ)
    log.update(k=READ, name="n")
    log.pop("k", None)
    out.h = (out.h if isinstance(getattr(out, "h", None), torch.Tensor) else torch.zeros(2)) * 0.5 - x.sum(0)
    x = x * (3.0 if getattr(out, "flag", True) else 2.0); out.flag = True
""")
_ON_EACH_CALL = ("out.n = getattr(out, 'n', 0) + 1", "noise.append(1)")  # what a replay cannot do
_STORE_CHANGES = lines("""
    log.clear()
    log = {}
    log["k"] = 5.0
    log["other"] = 1.0
    out = Out()
    out.b = None
    Out.b = None
    out.kept = None
    out.flag = False
    out.h = torch.ones(2)
    del out.a
    del out.h
    SAME = torch.full((2,), 0.35)
""")
_NOISE = ("noise.append(2.0)", "noise_count = len(noise)")
_TRAINING = """optimizer.zero_grad()
loss = (trained(x) * (READ) - x).pow(2).mean()
loss.backward()
optimizer.step()
x = x - loss.detach()"""
_TRAINING_CHANGES = lines("""
    optimizer.param_groups[0]["lr"] = 0.05
    optimizer.param_groups[0]["lr"] = np.float64(0.02)
    optimizer.param_groups[0]["weight_decay"] = 0.1
    optimizer.zero_grad()
    trained.eval()
    trained.train()
    trained.scale = 0.5
    trained.drop.p = 0.25
    trained.inner.bias.requires_grad_(False)
    trained.inner.weight.data.mul_(0.5)
    w = nn.Parameter(torch.full((2, 2), 0.3)); trained.inner.weight = w; optimizer.param_groups[0]["params"][0] = w
""")
PLACES = ("global", "attribute", "closure", "method")


@dataclass(frozen=True)
class World:
    """Text of a world: what is set up, the statements of its program, and the events (a change, or None for a call)."""

    seed: int
    setup: str
    head: tuple[str, ...]
    body: tuple[str, ...]
    tail: tuple[str, ...]
    events: tuple[str | None, ...]
    is_training: bool
    is_installed: bool  # whether its second module lies where packages are installed

    @property
    def source(self) -> str:
        """The module of the world."""
        indent = 4 * len(self.head)
        body = textwrap.indent("\n".join([*self.body, "return x"]), " " * indent)
        return "\n".join([self.setup, *self.head, body, *self.tail])

    def __str__(self) -> str:
        events = "\n".join("call" if event is None else event for event in self.events)
        return f"# world {self.seed}\n{self.source.removeprefix(_PRELUDE)}\n# events\n{textwrap.indent(events, '#   ')}"


@dataclass(frozen=True)
class Outcome:
    """What came of a run: counts, and the first difference, if there was one."""

    seed: int
    calls: int
    replays: int
    recordings: int
    misses: int
    refusals: int
    raised: int
    changes: int
    stale: str | None = None
    refusal: str | None = None
    is_dynamos: bool = False  # stale with nothing of ours behind Dynamo, too


def make_world(seed: int) -> World:
    """The world of a seed."""
    chance = random.Random(seed)
    make = Maker(chance, KINDS)
    is_training = chance.random() < 0.06
    setup, values, changes = [_PRELUDE], [], list(_NOISE)
    place = chance.choice(PLACES)
    names = [f"g{k}" for k in range(chance.choice((1, 1, 2, 2, 3)))]
    for name in names:
        value = make.any(2)
        setup += [*value.setup, f"{name} = {value.text}"]
        read_at = {"attribute": f"root.{name}", "method": f"self.{name}"}.get(place, name)
        owner = "root." if place in ("attribute", "method") else ""
        values.append(make.at(value, read_at))
        changed = make.at(value, owner + name).changes
        changes += [_rebound(change, name) for change in changed] if place == "closure" else changed
    if is_training:
        setup += [
            "trained = Net()",
            f"optimizer = torch.optim.{chance.choice(('SGD', 'Adam'))}(trained.parameters(), lr=0.1)",
        ]
        changes += _TRAINING_CHANGES
    head, tail = _frame(place, names)
    body = _body(make, values, is_training)
    if any("out." in line or "log" in line or "SAME" in line for line in body):
        changes += _STORE_CHANGES
    return World(seed, "\n".join(setup), head, body, tail, _events(chance, changes), is_training, chance.random() < 0.3)


def _rebound(change: str, name: str) -> str:
    """A variable of a closure is rebound by a function of the closure."""
    return change.replace(f"{name} = ", f"{name} = set_{name}(") + ")" if change.startswith(f"{name} = ") else change


def _frame(place: str, names: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What stands around the statements of a program."""
    if place == "global":
        return ("def program(x):",), ()
    if place == "attribute":
        return ("def program(x):",), (f"root = SimpleNamespace({', '.join(f'{name}={name}' for name in names)})",)
    if place == "method":
        setting = [f"root.{name} = {name}" for name in names]
        return ("class Root:", "    def program(self, x):"), ("root = Root()", *setting, "program = root.program")
    setters = [
        f"    def set_{n}(value):\n        nonlocal {n}\n        {n} = value\n        return value" for n in names
    ]
    given = ", ".join(f"set_{name}" for name in names)
    return (
        (f"def make_program({', '.join(names)}):", "    def program(x):"),
        (*setters, f"    return program, {given}", f"program, {given} = make_program({', '.join(names)})"),
    )


def _body(make: Maker, values: list[Value], is_training: bool) -> tuple[str, ...]:
    chance = make.chance
    reads = [read for value in values for read in value.reads]
    blocks = [block for value in values for block in value.blocks]
    body = []
    for _ in range(chance.randint(2, 7)):
        read, other = chance.choice(reads), chance.choice(reads)
        body.append(
            chance.choice(
                (
                    f"x = x * ({read}) - {make.number()}",
                    f"x = x * 0.5 - ({read}) * {make.number()}",
                    f"x = x * 0.75 - ({read}) + ({other}) * 0.25",
                    f"if ({read}) > {make.number()}:\n    x = x * 2 - 1\nelse:\n    x = x - 3 * ({other})",
                    f"def inner(k):\n    return ({read}) * k\nx = x - inner({make.number()})",
                    f"x = x * next(once(lambda: {read})) - 1",
                    f"with torch.no_grad():\n    x = x * ({read}) - 0.5",
                    chance.choice(blocks) if blocks else f"x = x - ({read})",
                    chance.choice(blocks) if blocks else f"x = x - ({read})",
                )
            )
        )
    if chance.random() < 0.45:
        for _ in range(chance.randint(1, 2)):
            store = chance.choice(_ON_EACH_CALL if chance.random() < 0.05 else _STORES)
            body.insert(chance.randint(0, len(body)), store.replace("READ", chance.choice(reads)))
    if is_training:
        body.append(_TRAINING.replace("READ", chance.choice(reads)))
    return tuple(body)


def _events(chance: random.Random, changes: list[str]) -> tuple[str | None, ...]:
    events: list[str | None] = [None, None, None]
    used: list[str] = []
    for _ in range(chance.randint(2, 6)):
        for _ in range(1 if chance.random() < 0.8 else 2):
            again = used and chance.random() < 0.15
            used.append(chance.choice(used if again else changes))
            events.append(used[-1])
        events += [None] * chance.choice((1, 2, 3, 3, 4))
    return tuple(events)


def run_world(seed: int, front: str = "jit") -> Outcome:
    """Make the world of a seed, and run it."""
    return run(make_world(seed), front)


def run(world: World, front: str = "jit") -> Outcome:
    """Both sides through all events, or to the first difference."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(), treeplay.settings.changed(compile_budget=math.inf, tiers="exact"):
            warnings.simplefilter("ignore")
            outcome = contextvars.copy_context().run(_run, world, front)
            if front == "compile" and outcome.stale is not None:
                alone = contextvars.copy_context().run(_run, world, "dynamo")
                return replace(outcome, is_dynamos=alone.stale is not None)
            return outcome
    finally:
        torch.set_num_threads(threads)


def shrink(world: World, front: str = "jit") -> World:
    """Leave out statements and events as long as a difference is left."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for part in ("events", "body"):
            kept = getattr(world, part)
            for at in reversed(range(len(kept))):
                fewer = replace(world, **{part: (*kept[:at], *kept[at + 1 :])})
                outcome = run(fewer, front)
                if outcome.stale is not None and not outcome.is_dynamos:
                    world, kept, is_smaller = fewer, getattr(fewer, part), True
    return world


class _Side:
    """One of the two worlds."""

    def __init__(self, world: World, name: str) -> None:
        self.modules = [self._module(f"{name}_lib", _LIBRARY, is_installed=world.is_installed)]
        self.modules.append(self._module(name, world.source, lib=self.modules[0]))
        self.table = vars(self.modules[1])

    def _module(self, name: str, source: str, *, is_installed: bool = False, **values: Any) -> types.ModuleType:
        folder = sysconfig.get_paths()["purelib"] if is_installed else "/worlds"
        made = types.ModuleType(name)
        made.__file__ = f"{folder}/{name}.py"
        vars(made).update(values)
        sys.modules[name] = made
        linecache.cache[made.__file__] = (len(source), None, source.splitlines(keepends=True), made.__file__)
        seed(3)
        exec(compile(source, made.__file__, "exec"), vars(made))
        return made

    def change(self, text: str) -> str:
        """Do what a user does between calls; the kind of error, if it cannot be done."""
        seed(5)
        try:
            exec(text, self.table)
        except Exception as error:
            return type(error).__name__
        return ""

    def state(self) -> list[Any]:
        """All that the program stores, and where it is the very object."""
        out, log, same = self.table["out"], self.table["log"], self.table["SAME"]
        kept = [getattr(out, "kept", None) is same, log.get("kept") is same]
        found = [dict(vars(out)), type(out).__dict__.get("b"), dict(log), kept, len(self.table["noise"])]
        if "trained" in self.table:
            found += [list(self.table["trained"].parameters()), [p.grad for p in self.table["trained"].parameters()]]
        return found

    def close(self) -> None:
        """Forget the modules."""
        for made in self.modules:
            sys.modules.pop(made.__name__, None)
            linecache.cache.pop(str(made.__file__), None)


def _fronted(program: Any, front: str) -> Any:
    if front == "jit":
        return treeplay.jit(program, lower="aten", on_refusal="eager")
    torch._dynamo.reset()
    if front == "dynamo":
        return torch.compile(program, backend="eager")
    return torch.compile(program, backend=backend, options={"inner": "aten"})


def _run(world: World, front: str) -> Outcome:
    # Names of one length: a program may read those of modules.
    sides = (_Side(world, "world_one"), _Side(world, "world_two"))
    jitted = _fronted(sides[0].table["program"], front)
    calls = raised = changes = 0
    stale = None
    try:
        for number, event in enumerate(world.events):
            if event is not None:
                first, second = (side.change(event) for side in sides)
                changes += not first
                stale = (
                    f"event {number}: {event}: {first or 'done'}, eager: {second or 'done'}"
                    if first != second
                    else None
                )
            else:
                calls += 1
                stale, was_raised = _call(jitted, sides, number, world.is_training, is_exact=front == "jit")
                raised += was_raised
            if stale is not None:
                break
        made = jitted.statistics() if front == "jit" else None
        graphs = treeplay.graph_reports() if front == "compile" else ()
    finally:
        if front == "jit":
            jitted.reset()
        for side in sides:
            side.close()
    if made is None:
        recordings = sum(report.outcome == "recorded" for report in graphs)
        return Outcome(world.seed, calls, 0, recordings, 0, 0, raised, changes, stale)
    return Outcome(
        seed=world.seed,
        calls=calls,
        replays=made.replays,
        recordings=made.recordings,
        misses=sum(len(key.rerecorded_because) for key in made.keys),
        refusals=made.refusals,
        raised=raised,
        changes=changes,
        stale=stale,
        refusal=next((key.refusal for key in made.keys if key.refusal), None),
    )


def _call(
    jitted: Any, sides: tuple[_Side, _Side], number: int, is_training: bool, *, is_exact: bool
) -> tuple[str | None, bool]:
    """A call on either side; the first difference, and whether eager raised."""
    x = torch.randn(2, 2, generator=torch.Generator().manual_seed(number))
    found = []
    for program in (sides[1].table["program"], jitted):
        torch.default_generator.manual_seed(number)
        with torch.set_grad_enabled(is_training):
            try:
                found.append((program(x.clone()), torch.get_rng_state()))
            except Exception as error:
                found.append((f"{type(error).__name__}", None))
    expected, result = found
    if not is_exact:  # what is compiled may round otherwise, and draw otherwise
        expected, result = (expected[0],), (result[0],)
    states = (sides[0].state(), sides[1].state())
    what = difference(result, expected, "result", is_exact) or difference(*states, "state", is_exact)
    return (f"call at event {number}: {what}" if what else None), isinstance(expected[0], str)


def difference(found: Any, expected: Any, where: str, is_exact: bool = True) -> str | None:
    """The first place in which two values differ, tensors bit for bit or to rounding; objects of no known kind only by their
    kind."""
    if type(found).__name__ != type(expected).__name__:
        return f"{where}: {found!r}, expected {expected!r}"
    if isinstance(expected, torch.Tensor):
        is_equal = _equal if is_exact else _close
        is_same = found.dtype is expected.dtype and found.shape == expected.shape and is_equal(found, expected)
        return None if is_same else f"{where}: {found.detach().tolist()}, expected {expected.detach().tolist()}"
    if isinstance(expected, dict):
        if list(found) != list(expected):
            return f"{where}: keys {list(found)}, expected {list(expected)}"
        pairs = [(f"{where}[{key!r}]", found[key], expected[key]) for key in expected]
    elif isinstance(expected, (list, tuple)):
        if len(found) != len(expected):
            return f"{where}: {len(found)} items, expected {len(expected)}"
        pairs = [(f"{where}[{k}]", a, b) for k, (a, b) in enumerate(zip(found, expected, strict=True))]
    elif isinstance(expected, (bool, int, float, complex, str, bytes)):
        return None if repr(found) == repr(expected) else f"{where}: {found!r}, expected {expected!r}"
    else:
        return None
    return next((what for key, a, b in pairs if (what := difference(a, b, key, is_exact))), None)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = a.detach(), b.detach()
    if torch.equal(a, b):
        return not a.is_floating_point() or torch.equal(a.signbit(), b.signbit())
    return a.is_floating_point() and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = a.detach(), b.detach()
    if not a.is_floating_point():
        return torch.equal(a, b)
    return bool(torch.isclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True).all())
