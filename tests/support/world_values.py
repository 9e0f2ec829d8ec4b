"""Random values of random worlds, as text: how each is made, how a program may read it, and how a user may change it.

In a text `@` stands for the place of the value: `num(@.get("a"))` of the value at `root.g0` is `num(root.g0.get("a"))`. Each
LIT stands for a small value, each NUM for a number, KEY and OTHER for names that are the same throughout a text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

KEYS = ("a", "bb", "ccc", "gain")
_NUMBERS = ("2.0", "3.0", "0.5", "-1.5", "0.25")
_USUAL = (*_NUMBERS, "0.0", "-0.0", "1", "0", "1.0", "True", "False", "np.float64(2.5)", "np.float64(-0.0)")
_UNUSUAL = (
    *("None", "'ab'", "'c'", "np.float32(0.5)", "np.int64(3)", "np.bool_(True)", "Fraction(1, 3)", "Decimal('0.25')"),
    *("Mode.ADD", "Mode.TAKE", "(1.0, 2)", "(1.0, 3)", "1 + 2j", "range(3)", "slice(0, 2)", "b'ab'", "torch.float64"),
)


def lines(text: str) -> tuple[str, ...]:
    """The lines of a text that are not empty."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())


@dataclass(frozen=True)
class Value:
    """`setup` comes before, on lines of its own. `reads` are numbers, `blocks` statements that change `x`."""

    text: str
    setup: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


Kind = Callable[["Maker", int], Value]


@dataclass
class Maker:
    """Makes values of these kinds from one stream of random numbers; no name is used twice."""

    chance: random.Random
    kinds: tuple[Kind, ...]
    count: int = 0

    def name(self, stem: str) -> str:
        """A new name."""
        self.count += 1
        return f"{stem}{self.count}"

    def literal(self) -> str:
        """A small value of any kind."""
        return self.chance.choice(_USUAL if self.chance.random() < 0.6 else _UNUSUAL)

    def number(self) -> str:
        """A float."""
        return self.chance.choice(_NUMBERS)

    def filled(self, text: str) -> str:
        """A text with values in the places of LIT, NUM, KEY and OTHER."""
        key, other = self.chance.choice(KEYS), self.chance.choice(KEYS)
        given = {"LIT": self.literal, "NUM": self.number, "KEY": lambda: key, "OTHER": lambda: other}
        return re.sub(r"\b(LIT|NUM|KEY|OTHER)\b", lambda found: given[found[0]](), text)

    def value(self, depth: int) -> Value:
        """Of any kind; deep down only a plain one."""
        if depth <= 0 or self.chance.random() < 0.3:
            return plain(self, 0)
        return self.any(depth)

    def any(self, depth: int) -> Value:
        """Of any kind."""
        return self.chance.choice(self.kinds)(self, depth)

    def made(
        self,
        text: str,
        *,
        setup: str = "",
        reads: str = "",
        blocks: str = "",
        changes: str = "",
        parts: tuple[Value, ...] = (),
    ) -> Value:
        """A value of these texts, one to a line, with its parts, which stand at their places."""
        return Value(
            self.filled(text),
            (*(line for part in parts for line in part.setup), *([self.filled(setup)] if setup else ())),
            (*lines(self.filled(reads)), *(read for part in parts for read in part.reads)),
            (*lines(self.filled(blocks)), *(block for part in parts for block in part.blocks)),
            (*lines(self.filled(changes)), *(change for part in parts for change in part.changes)),
        )

    def at(self, child: Value, place: str, *, is_settable: bool = True) -> Value:
        """A value as it stands at `place`: in another, or in the world."""
        reads, blocks, changes = (
            tuple(text.replace("@", place) for text in texts) for texts in (child.reads, child.blocks, child.changes)
        )
        if is_settable and not changes:  # a plain value
            changes = tuple(f"{place} = {self.literal()}" for _ in range(2))
        elif is_settable:  # another one that is the same, and seldom something else altogether
            changes += (f"{place} = {self.literal() if self.chance.random() < 0.25 else child.text}",)
        return Value(child.text, child.setup, reads, blocks, changes)


def plain(make: Maker, _: int) -> Value:
    """A number or another small value."""
    return make.made(
        "LIT",
        reads="""
        num(@)
        num(@)
        (1.0 if @ is None else 2.0)
        (1.0 if isinstance(@, str) else 3.0)
        (4.0 if @ == 2.0 else 0.5)
        """,
    )


_DICTS = lines("""
    {}
    {}
    {}
    OrderedDict({})
    UserDict({})
    ChainMap({{}}, {})
    defaultdict(float, {})
    Table({})
""")


def mapping(make: Maker, depth: int) -> Value:
    """A dict of some kind, with values of any kind."""
    keys = make.chance.sample(KEYS, make.chance.randint(0, 3))
    parts = tuple(make.at(make.value(depth - 1), f'@["{key}"]') for key in keys)
    text = "{" + ", ".join(f'"{key}": {part.text}' for key, part in zip(keys, parts, strict=True)) + "}"
    return make.made(
        make.chance.choice(_DICTS).format(text),
        parts=parts,
        reads="""
        num(@.get("KEY", 0.7))
        num(@.get("KEY"))
        num(@.get("" + "KEY"))
        (num(@["KEY"]) if "KEY" in @ else 0.4)
        attempt(lambda: @["KEY"])
        num(dict(@).get("KEY"))
        num({**@}.get("KEY", 0.3))
        num(copy.copy(@).get("OTHER"))
        sum(num(v) for v in @.values())
        sum(num(v) * len(k) for k, v in @.items())
        num(next(iter(@.values()), 0.6))
        len(sorted(@)[-1:])
        len(@)
        (1.0 if "KEY" in @ else 2.0)
        (1.5 if @ else 2.5)
        """,
        blocks="""
        for k, v in @.items(): x = x * 0.5 - num(v) - len(k)
        for k in @: x = x * 0.5 - num(@[k])
        for k in sorted(@): x = x * 0.5 - num(@[k])
        for v in list(@.values())[::-1]: x = x * 0.5 - num(v)
        x = named(x, **@)
        """,
        changes="""
        @["KEY"] = LIT
        @["KEY"] = LIT
        @["OTHER"] = LIT
        @["KEY"] = @.pop("KEY", 1.0)
        @.pop("KEY", None)
        @.clear()
        @.update(OTHER=LIT)
        @.setdefault("OTHER", LIT)
        """,
    )


_LISTS = lines("""
    [{}]
    [{}]
    [{}]
    deque([{}])
    UserList([{}])
    [{}] + [1.5] * 20
""")


def sequence(make: Maker, depth: int) -> Value:
    """A list of some kind, with values of any kind."""
    parts = tuple(make.at(make.value(depth - 1), f"@[{k}]") for k in range(make.chance.randint(0, 3)))
    return make.made(
        make.chance.choice(_LISTS).format(", ".join(part.text for part in parts)),
        parts=parts,
        reads="""
        len(@)
        sum(num(v) for v in @)
        sum(map(num, @))
        (num(@[-1]) if @ else 0.3)
        (num(@[0]) if len(@) else 0.8)
        attempt(lambda: @[1])
        (1.0 if 2.0 in @ else 2.0)
        num(next(iter(@), 0.9))
        sum(k * num(v) for k, v in enumerate(@))
        len([*@, 1.0])
        (2.0 if any(v is None for v in @) else 1.0)
        """,
        blocks="""
        for v in @: x = x * 0.5 - num(v)
        for v in reversed(@): x = x * 0.5 - num(v)
        """,
        changes="""
        @.append(LIT)
        @.append(LIT)
        @.insert(0, LIT)
        @.extend([NUM] * 18)
        @[0] = LIT
        @[-1] = LIT
        @.pop()
        @.clear()
        @.reverse()
        """,
    )


_ARRAYS = lines("""
    np.array([NUM, NUM, NUM])
    np.array([NUM, NUM, NUM], dtype=np.float32)
    array('d', [NUM, NUM, NUM])
""")


def packed(make: Maker, _: int) -> Value:
    """Numbers packed by NumPy or by `array`."""
    return make.made(
        make.chance.choice(_ARRAYS),
        reads="""
        float(@[0])
        float(@[-1])
        float(sum(@))
        float(max(@))
        float(np.asarray(@).mean())
        len(@)
        """,
        blocks="""
        for v in @: x = x * 0.5 - float(v)
        x = x - torch.tensor(@.tolist()).sum()
        """,
        changes="""
        @[0] = NUM
        @[1] = NUM
        @[2] = NUM
        @[:] = @[::-1].copy() if hasattr(@, "copy") else @[::-1]
        """,
    )


def members(make: Maker, _: int) -> Value:
    """A set of names."""
    names = make.chance.sample(KEYS, make.chance.randint(1, 3))
    return make.made(
        "{" + ", ".join(map(repr, names)) + "}",
        reads="""
        (1.0 if "KEY" in @ else 2.0)
        (1.0 if "OTHER" in @ else 2.0)
        len(@)
        len("".join(sorted(@)))
        (1.0 if @ else 2.0)
        len(@ & {"KEY"})
        """,
        changes="""
        @.add("KEY")
        @.add("OTHER")
        @.discard("KEY")
        @.update(["OTHER", "KEY"])
        @.clear()
        """,
    )


def record(make: Maker, depth: int) -> Value:
    """A tuple, with values of any kind."""
    is_named = make.chance.random() < 0.5
    places = ("@.first", "@.second") if is_named else ("@[0]", "@[1]")
    parts = tuple(make.at(make.value(depth - 1), place, is_settable=False) for place in places)
    return make.made(
        ("Pair({})" if is_named else "({})").format(", ".join(part.text for part in parts)),
        parts=parts,
        reads="""
        num(@[0])
        num(@[-1])
        sum(num(v) for v in @)
        (num(@._asdict()["first"]) if hasattr(@, "_asdict") else 0.2)
        """,
        blocks="first, second = @; x = x * num(first) - num(second)",
    )
