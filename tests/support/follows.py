"""Stories of a world that changes between calls, told to a jitted program and to an eager twin of it.

    @follows()
    def test_a_number_of_a_config() -> Story:
        config = Config()
        yield lambda x: x * config.scale - 1
        config.scale = 5.0
        yield

A story yields the program first, or the program and a function that gives the state to compare; each `yield` after that
follows one change. Both worlds are told the story, and after every change both are called a few times.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy
import torch

import treeplay
from support import assert_same, jit
from support.quick import seed

Story = Generator[Any, None, None]
Arguments = Callable[[], tuple[Any, ...]]


def a_batch() -> tuple[torch.Tensor, ...]:
    """What a program is called with where a story does not say otherwise."""
    return (torch.randn(4, 3),)


def nothing() -> tuple[Any, ...]:
    """No arguments at all."""
    return ()


@contextlib.contextmanager
def put_back(get: Callable[[], Any], set_: Callable[[Any], Any]) -> Any:
    """What `set_` sets in the block is set back after it."""
    before = get()
    try:
        yield set_
    finally:
        set_(before)


def follows(
    *,
    calls: int = 4,
    refused: str | None = None,
    may_refuse: bool = False,
    grad: bool = False,
    worlds: int = 2,
    given: Arguments = a_batch,
    recordings: int | None = None,
    **options: Any,
) -> Callable[[Callable[..., Story]], Callable[..., None]]:
    """A test of a story: every call on the jitted side gives what eager gives, and leaves the same state.

    Unless it is to be refused, every stage in which eager does not raise must be replayed too, and one change may cost one
    new recording.

    `refused`: a text of the refusal that is the right answer. `may_refuse`: a refusal is as good as a guard. `worlds=1`:
    the story changes something of the whole process, and its program has no effects. `recordings`: so many, and no more.
    """

    def decorate(story: Callable[..., Story]) -> Callable[..., None]:
        @functools.wraps(story)
        def test(*args: Any, **kwargs: Any) -> None:
            pair = Pair([story(*args, **kwargs) for _ in range(worlds)], given, grad, refused is not None or may_refuse)
            with contextlib.ExitStack() as told:
                for each in pair.stories:  # what a story has set is set back, though a test fails within
                    told.callback(each.close)
                stages = pair.tell(calls, options)
            made = pair.jitted.statistics()
            if refused is not None:
                assert made.refusals >= 1, f"not refused:\n{pair.jitted.explain()}"
                assert any(refused in (key.refusal or "") for key in made.keys), pair.jitted.explain()
            elif may_refuse and made.refusals:
                return
            else:
                assert made.refusals == 0, pair.jitted.explain()
                least, most = (1, len(stages)) if recordings is None else (recordings, recordings)
                assert least <= made.recordings <= most, pair.jitted.explain()
                assert all(stages), f"replays by stage: {stages}\n{pair.jitted.explain()}"

        return test

    return decorate


class Pair:
    """A story told to the jitted side and to the eager side."""

    def __init__(self, stories: list[Story], given: Arguments, grad: bool, may_refuse: bool) -> None:
        self.stories = stories
        self.given = given
        self.grad = grad
        self.may_refuse = may_refuse
        self.jitted: Any = None
        self.raised = 0  # calls of a stage
        self.seed = 0  # both sides make the same, and another on each change

    def tell(self, calls: int, options: dict[str, Any]) -> list[int]:
        """Both sides from the first yield to the last; how often each stage was replayed."""
        started = [self._next(story) for story in self.stories]
        program, state = _parts(started[0])
        eager, eager_state = _parts(started[-1])
        self.jitted = jit(program, **{"on_refusal": "eager" if self.may_refuse else "raise", **options})
        stages = []
        while True:
            before, self.raised = self.jitted.statistics().replays, 0
            for call in range(calls):
                self._call(eager, f"stage {len(stages)}, call {call}")
                assert_same(state(), eager_state(), f"state after stage {len(stages)}, call {call}")
            stages.append(self.jitted.statistics().replays - before + self.raised // calls)
            self.seed += 1
            if [self._next(story) for story in self.stories] == [_END] * len(self.stories):
                return stages

    def _next(self, story: Story) -> Any:
        seed(self.seed)
        return next(story, _END)

    def _call(self, eager: Callable[..., Any], where: str) -> None:
        args = self.given()
        twins = copy.deepcopy(args)
        before = random_state()
        with torch.set_grad_enabled(self.grad):
            expected = outcome(eager, twins)
            after = random_state()
            set_random_state(before)
            with warnings.catch_warnings() if self.may_refuse else contextlib.nullcontext():
                if self.may_refuse:
                    warnings.simplefilter("ignore")
                found = outcome(self.jitted, args)
        self.raised += isinstance(expected, Raised)
        assert_same(found, expected, where)
        assert_same(args, twins, f"arguments of {where}")
        assert torch.equal(random_state()[0], after[0]), f"the random sequence differs after {where}"
        set_random_state(after)


def outcome(program: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The result, or the kind of error that is the program's own."""
    try:
        return program(*args)
    except treeplay.TreeplayError:
        raise
    except Exception as error:
        return Raised(type(error))


@dataclass(frozen=True)
class Raised:
    """An error in place of a result."""

    kind: type[Exception]


def random_state() -> tuple[Any, ...]:
    """Of torch, Python and NumPy."""
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state()


def set_random_state(state: tuple[Any, ...]) -> None:
    """Back to what `random_state` gave."""
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    numpy.random.set_state(state[2])


class _End:
    """The story is over."""


_END = _End()


def _parts(first: Any) -> tuple[Callable[..., Any], Callable[[], Any]]:
    program, state = first if isinstance(first, tuple) else (first, lambda: None)
    return program, state


class Holder:
    """An object with one attribute."""

    def __init__(self, value: Any) -> None:
        self.value = value


def folded(x: torch.Tensor, values: Any) -> torch.Tensor:
    """All the numbers in turn; their order matters."""
    for value in values:
        x = x * float(value) - 1
    return x


def folded_by_name(x: torch.Tensor, pairs: Any) -> torch.Tensor:
    """The same, and the names matter too."""
    for name, value in pairs:
        x = x * value - len(name)
    return x


def named(x: torch.Tensor, *, gain: float = 1.0, bias: float = 0.0, **others: float) -> torch.Tensor:
    """What takes names."""
    return folded_by_name(x * gain - bias, others.items())
