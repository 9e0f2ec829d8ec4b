"""Random generators during a trace: each random operator must meet a state that one before it left.

A replay draws on from where a generator stands. A program that seeds a generator, leaves it in an earlier state or makes a
generator of its own would draw other numbers than eager, so it is refused. Where it puts back an earlier state for a while
(`checkpoint`), it may draw once more what it has drawn from there (`trace.run.draws`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from treeplay.guards.reads.reads import Reads
from treeplay.observe.rng import default_generators, moving
from treeplay.sandbox.teardown import each
from treeplay.torch_seam.tensors import address_of

# fmt: off
SETS = frozenset(f"Generator.{name}" for name in (
    "manual_seed", "seed", "set_state", "set_offset", "graphsafe_set_state",
))
"""The methods by which a program sets where a generator stands."""
USES = SETS | {f"Generator.{name}" for name in (
    "get_state", "initial_seed", "get_offset", "graphsafe_get_state", "clone_state",
)}
# fmt: on
"""Those, and the methods by which it sees where one stands."""


class TrackedGenerators:
    """Generators that outlive the call, in a context; they are as before after it.

    With `is_marking` each gets a seed of its own at each draw, so that it shows when the program sets one. Without, they are
    left alone, for other threads draw from them: whoever uses them asks afterwards whether the program called one (`USES`),
    and if so traces it again with marks.
    """

    def __init__(self, known: Iterable[torch.Generator], *, is_marking: bool = True) -> None:
        self.is_marking = is_marking
        self.is_used = is_marking
        """Whether there is anything to put back."""
        self._base = int.from_bytes(os.urandom(6), "little")  # what another thread draws meanwhile is drawn once
        every = [*default_generators(), *known]
        with moving:
            self._before = {address_of(generator): (generator, generator.get_state()) for generator in every}
        self._expected: dict[int, int] = {}
        self._drawn = 0

    def __enter__(self) -> TrackedGenerators:
        try:
            for generator, _ in self._before.values():
                self.draw(generator)
        except BaseException:
            self.restore()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def note(self, reads: Reads) -> None:
        """Note from a run whether the program calls a method of a generator: then there is something to put back."""
        self.is_used |= reads.code is None or not USES.isdisjoint(reads.methods)

    def is_known(self, generator: torch.Generator) -> bool:
        """Whether `generator` was there before the trace."""
        return address_of(generator) in self._before

    def was_set(self, generator: torch.Generator) -> bool:
        """Whether the program gave `generator` another state since the last random operator."""
        # By the seed: no draw changes it.
        return self.is_marking and generator.initial_seed() != self._expected[address_of(generator)]

    def any_was_set(self, reads: Reads | None = None) -> bool:
        """Whether that is so for any of them; or the run told of in `reads` has moved one within the sequence of its seed."""
        is_moved = reads is not None and "Generator.set_offset" in reads.methods
        return is_moved or any(self.was_set(generator) for generator, _ in self._before.values())

    def draw(self, generator: torch.Generator) -> None:
        """Give `generator` a seed of its own, so that going back to an earlier state shows; numbers that another thread
        draws meanwhile leave it as it is."""
        if not self.is_marking:
            return
        self._drawn += 1
        with moving:
            generator.manual_seed(self._base + self._drawn)
            self._expected[address_of(generator)] = generator.initial_seed()

    def go_on(self, generator: torch.Generator, seed: int) -> None:
        """Have `generator` stand where a draw of this run has left it: behind a draw that repeats that one."""
        with moving:
            generator.manual_seed(seed)

    def restore(self) -> None:
        """Put every generator back, if one was moved."""
        if not self.is_used:
            return
        with moving:
            each(self._before.values(), lambda generator, state: generator.set_state(state))


def generator_in(arguments: Iterable[Any], device: torch.device) -> torch.Generator:
    """The generator that an operator with these arguments draws from for a result on `device`."""
    given = (leaf for leaf in arguments if isinstance(leaf, torch.Generator))
    if device.type != "cuda":
        return next(given, torch.default_generator)
    index = device.index if device.index is not None else torch.cuda.current_device()
    return next(given, torch.cuda.default_generators[index])


def device_drawn_on(arguments: Sequence[Any]) -> torch.device:
    """Where an operator with these arguments computes: on a device that it is given, else with its first tensor."""
    named = [leaf for leaf in arguments if isinstance(leaf, torch.device)]
    return next(
        iter([*named, *(leaf.device for leaf in arguments if isinstance(leaf, torch.Tensor))]), torch.device("cpu")
    )


def is_user_generator(generator: torch.Generator) -> bool:
    """Whether a generator is the user's, not one that torch has for a device."""
    return all(address_of(generator) != address_of(known) for known in default_generators())
