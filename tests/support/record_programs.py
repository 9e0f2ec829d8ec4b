"""Random programs over nested records, and random changes between their calls.

w.a = replace(w.a, inner=w.b.inner, n=w.a.n + 1)        in each call, of a text that is made
w.b = w.a; w.a.inner.mode = "c"; another of the like    between two calls
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from support import assert_same, jit
from support.records import World, parts_of


@dataclass(frozen=True)
class Leaf:
    n: int
    x: Any
    mode: str


@dataclass
class Bud:
    n: int
    x: Any
    mode: str


@dataclass(slots=True, eq=False)
class Twig:
    n: float
    x: Any
    mode: str


@dataclass(frozen=True)
class Branch:
    left: Any
    right: Any
    n: int


class Fork(NamedTuple):
    left: Any
    right: Any


SLOTS = ("a", "b", "c")
NAMES = {"replace": replace, "Leaf": Leaf, "Bud": Bud, "Twig": Twig, "Branch": Branch, "Fork": Fork}
ENDS: tuple[type, ...] = (Leaf, Bud, Twig)


@dataclass(frozen=True)
class Shape:
    """What a slot holds: an end, or two shapes within something."""

    kind: str
    parts: tuple[Shape, ...] = ()

    def made(self, rng: random.Random) -> Any:
        """A value of this shape."""
        if not self.parts:
            n = rng.randrange(5) if self.kind != "Twig" else rng.random()
            x = torch.tensor([rng.random(), rng.random(), rng.random()])
            return NAMES[self.kind](n, x, "a")
        parts = [part.made(rng) for part in self.parts]
        if self.kind == "Branch":
            return Branch(*parts, rng.randrange(5))
        return {"Fork": lambda: Fork(*parts), "tuple": lambda: (*parts,), "list": lambda: parts}.get(
            self.kind, lambda: dict(zip("lr", parts, strict=True))
        )()

    def below(self, path: str) -> Iterator[tuple[str, Shape]]:
        """This shape and those in it, each with the way there."""
        yield path, self
        for step, part in zip(self.steps, self.parts, strict=True):
            yield from part.below(path + step)

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps to the parts."""
        if not self.parts:
            return ()
        if self.kind in ("Branch", "Fork"):
            return ".left", ".right"
        return ("['l']", "['r']") if self.kind == "dict" else ("[0]", "[1]")


def a_shape(rng: random.Random, depth: int = 2) -> Shape:
    """A random shape."""
    if depth == 0 or rng.random() < 0.3:
        return Shape(rng.choice(["Leaf", "Bud", "Twig"]))
    kind = rng.choice(["Branch", "Branch", "Fork", "tuple", "dict", "list"])
    return Shape(kind, (a_shape(rng, depth - 1), a_shape(rng, depth - 1)))


def a_program(rng: random.Random, shape: Shape) -> str:
    """The text of a program over slots of this shape."""
    found = [(path, part) for slot in SLOTS for path, part in shape.below(f"w.{slot}")]
    ends = [path for path, part in found if not part.parts]
    lines = ["y = x * 2 - 1"]
    for _ in range(rng.randrange(1, 4)):
        path, other = rng.choice(ends), rng.choice(ends)
        lines.append(
            rng.choice(
                [
                    f"y = y * 0.5 + {path}.x * {other}.n",
                    f"y = y - {path}.x * (2 if {path}.mode == 'a' else 3)",
                    f"y = y * 2 - (5 if {path} is {other} else 7)",
                    f"y = y - {path}.x * (0.5 if {path}.n > 3 else 0.25)",
                ]
            )
        )
    for slot in rng.sample(SLOTS, rng.randrange(1, 4)):
        lines.append(f"{slot} = {_another(rng, shape, f'w.{slot}', found, is_whole=True)}")
        if rng.random() < 0.3:
            lines.append(f"w.{slot} = {slot}")
        else:
            lines.insert(rng.randrange(1, len(lines)), "pass")
            lines.append(f"w.{slot} = {slot}")
    lines.append("return y * 3 - 1")
    return "def program(w, x):\n    " + "\n    ".join(lines)


def _another(rng: random.Random, shape: Shape, path: str, found: list[tuple[str, Shape]], *, is_whole: bool) -> str:
    """An expression for what takes the place of what is at `path`."""
    if rng.random() < (0.1 if is_whole else 0.25):
        return rng.choice([other for other, part in found if part == shape])
    if not shape.parts:
        x = rng.choice([f"{path}.x * 0.5 + x", f"{path}.x - y", f"{path}.x", "x * 1"])
        n = rng.choice([f"{path}.n + 1", f"{path}.n * 2 - 3", f"{path}.n"])
        new = f"{shape.kind}({n}, {x}, {path}.mode)"
        return rng.choice([f"replace({path}, n={n}, x={x})", f"replace({path}, x={x})", new])
    parts = [
        _another(rng, part, path + step, found, is_whole=False)
        for step, part in zip(shape.steps, shape.parts, strict=True)
    ]
    if shape.kind == "Branch":
        new = f"Branch({parts[0]}, {parts[1]}, {path}.n + 1)"
        return rng.choice(
            [f"replace({path}, left={parts[0]})", f"replace({path}, right={parts[1]}, n={path}.n + 2)", new]
        )
    made = {"Fork": "Fork({}, {})", "tuple": "({}, {})", "list": "[{}, {}]", "dict": "{{'l': {}, 'r': {}}}"}
    return made[shape.kind].format(*parts)


Change = Callable[[World, list[Any]], None]


def a_change(rng: random.Random, shape: Shape) -> Change:
    """Something that others do between two calls, to a world and what was kept of it."""
    slot, other = rng.choice(SLOTS), rng.choice(SLOTS)
    ends = [path for path, part in shape.below("v") if not part.parts]
    path, second, seed = rng.choice(ends), rng.choice(ends), rng.random()
    mode = rng.choice("ab")

    def end(w: World, name: str, at: str) -> Any:
        return eval(at, {"v": getattr(w, name)})

    def anew(w: World, _: list[Any]) -> None:
        setattr(w, slot, shape.made(random.Random(seed)))

    def one_for_both(w: World, _: list[Any]) -> None:
        setattr(w, slot, getattr(w, other))

    def copied(w: World, _: list[Any]) -> None:
        setattr(w, slot, copy.deepcopy(getattr(w, other)))

    def changed(w: World, _: list[Any]) -> None:
        object.__setattr__(end(w, slot, path), "mode", mode)

    def all_changed(w: World, kept: list[Any]) -> None:
        for held in (*kept, *vars(w).values()):
            object.__setattr__(eval(path, {"v": held}), "mode", mode)

    def kept_changed(_: World, kept: list[Any]) -> None:
        for held in kept:
            object.__setattr__(eval(path, {"v": held}), "mode", mode)

    def put_back(w: World, kept: list[Any]) -> None:
        setattr(w, slot, kept[int(seed * len(kept))])

    def one_tensor(w: World, _: list[Any]) -> None:
        object.__setattr__(end(w, slot, path), "x", end(w, other, second).x)

    def counted(w: World, _: list[Any]) -> None:
        object.__setattr__(end(w, slot, path), "n", end(w, other, second).n * 2)

    changes = [anew, anew, one_for_both, copied, changed, all_changed, kept_changed, put_back, one_tensor, counted]
    return rng.choice(changes)


def run_program(seed: int, stages: int = 5, calls: int = 4) -> tuple[int, int]:
    """A random program beside an eager twin: how often it was replayed, and refused. Fails where the two differ."""
    rng = random.Random(seed)
    shape = a_shape(rng)
    text = a_program(rng, shape)
    names = dict(NAMES)
    exec(text, names)
    program: Any = names["program"]
    made = World(**{slot: shape.made(rng) for slot in SLOTS})
    mine, twin = made, copy.deepcopy(made)
    jitted = jit(lambda x: program(mine, x), on_refusal="eager")
    kept: tuple[list[Any], list[Any]] = ([], [])
    told = [text]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for stage in range(stages):
            if stage:
                change = a_change(rng, shape)
                told.append(change.__name__)
                for w, held in zip((mine, twin), kept, strict=True):
                    change(w, held)
            for call in range(calls):
                where = f"seed {seed}, stage {stage}, call {call}: {told}"
                for w, held in zip((mine, twin), kept, strict=True):
                    held.append(getattr(w, SLOTS[call % 3]))
                x = torch.arange(3.0) + call
                found, expected = outcome(jitted, x), outcome(lambda x: program(twin, x), x)
                assert_same(found, expected, where)
                assert_same(parts_of(mine), parts_of(twin), where)
                assert relations(mine, shape, kept[0]) == relations(twin, shape, kept[1]), where
                assert_same(parts_of(kept[0]), parts_of(kept[1]), where)
    statistics = jitted.statistics()
    return statistics.replays, statistics.refusals


def outcome(program: Any, x: Any) -> Any:
    """What a program returns."""
    return program(x)


def relations(w: World, shape: Shape, kept: list[Any]) -> list[int]:
    """Which of the parts that may be told apart are one object, and which of them are one that was there before."""
    held = [*vars(w).values(), *kept]
    found = [
        eval(path, {"v": each})
        for each in held
        for path, part in shape.below("v")
        if part.kind not in ("Fork", "tuple")
    ]
    found += [each.x for each in found if isinstance(each, ENDS)]
    first: dict[int, int] = {}
    return [first.setdefault(id(each), at) for at, each in enumerate(found)]
