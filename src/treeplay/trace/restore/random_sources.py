"""Random generators of Python and NumPy: the global ones, and those that a program reaches. What a program draws from them is
a plain number, which a recording would freeze, also where two runs happened to draw the same.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from treeplay.sandbox.teardown import each
from treeplay.values.kinds import is_a


class RandomSources:
    """The states of the generators, as they were."""

    def __init__(self, reached: Iterable[Any]) -> None:
        self._before = [(*source, source[2]()) for source in (*_global(), *_own(reached))]
        self._begun = [state for *_, state in self._before]  # as the program finds them

    def mark(self) -> None:
        """Have each stand where no seed puts it: a program may seed one that the call before has seeded alike. Only where no
        other thread draws."""
        for _, owner, *_ in self._before:
            _draw(owner)
        self._begun = [get() for _, _, get, *_ in self._before]

    def moved(self, is_ours: IsOurs) -> tuple[str, Any] | None:
        """The name of a generator that stands elsewhere now, and it; `is_ours` says whether the program may have used it."""
        for (name, owner, get, *_), begun in zip(self._before, self._begun, strict=True):
            if not _is_same(begun, get()) and is_ours(owner):
                return name, owner
        return None

    def restore(self, is_ours: IsOurs) -> None:
        """Put every generator back that the program may have used, or that was marked."""

        def put_back(source: tuple[*RandomSource, Any], begun: Any) -> None:
            _, owner, get, put, state = source
            now = get()
            if not _is_same(state, now) and (_is_same(begun, now) or is_ours(owner)):
                with suppress(ValueError):  # NumPy's global generator may have been given another algorithm
                    put(state)

        each(zip(self._before, self._begun, strict=True), put_back)
        self._begun = [state for *_, state in self._before]


# Name, generator, and how to read and set its state.
RandomSource = tuple[str, Any, Callable[[], Any], Callable[[Any], None]]
IsOurs = Callable[[Any], bool]


def _global() -> Iterator[RandomSource]:
    # The functions of both modules are methods of one generator, which has no public name.
    yield "random", random.getstate.__self__, random.getstate, random.setstate  # type: ignore[attr-defined]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield "numpy.random", numpy.random.get_state.__self__, numpy.random.get_state, numpy.random.set_state


def _own(reached: Iterable[Any]) -> Iterator[RandomSource]:
    for value in reached:
        access = _access(value)
        if access is not None:
            owner = "Python" if isinstance(value, random.Random) else "NumPy"
            yield f"{owner}'s {type(value).__name__}", value, *access


def _access(value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
    """How to read and to set the state of a generator; None for what is none, or has no state."""
    if is_a(value, random.Random):
        return (value.getstate, value.setstate) if not is_a(value, random.SystemRandom) else None
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if is_a(value, numpy.random.Generator):
        return _of_bits(value.bit_generator)
    if is_a(value, numpy.random.RandomState):
        return value.get_state, value.set_state
    return _of_bits(value) if is_a(value, numpy.random.BitGenerator) else None


def _of_bits(bits: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def put(state: Any) -> None:
        bits.state = state

    return lambda: bits.state, put


def _draw(owner: Any) -> None:
    """Draw one number, by no method of a user's class."""
    if isinstance(owner, random.Random):
        random.Random.getrandbits(owner, 32)
        return
    numpy = sys.modules["numpy"]
    if isinstance(owner, numpy.random.RandomState):
        numpy.random.RandomState.random_sample(owner)
    else:
        bits = owner.bit_generator if isinstance(owner, numpy.random.Generator) else owner
        numpy.random.BitGenerator.random_raw(bits)


def is_source(value: Any) -> bool:
    """Whether `value` is a random generator of Python's or NumPy's."""
    return _access(value) is not None


def _is_same(before: Any, now: Any) -> bool:
    if isinstance(before, tuple):
        if {*map(type, before)} == {int}:  # the 625 words of Python's generators
            return bool(before == now)
        return len(before) == len(now) and all(_is_same(a, b) for a, b in zip(before, now, strict=True))
    if isinstance(before, dict):
        return before.keys() == now.keys() and all(_is_same(state, now[name]) for name, state in before.items())
    if hasattr(before, "tobytes"):  # NumPy's arrays, of which `==` gives one more
        return bool(before.tobytes() == now.tobytes())
    return bool(before == now)
