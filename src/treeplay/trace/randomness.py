"""Random generators during a trace: each random operator must meet the state that the one before it left.

A replay draws on from where a generator stands. A program that seeds a generator, puts back an earlier state
(`fork_rng`, `checkpoint`) or makes a generator of its own would draw other numbers than eager, so it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from treeplay.device.generators import default_generators, moving
from treeplay.trace.torch_private import address_of

_SEED = 0x7EEB1A7


class Generators:
    """Generators that outlive the call. `restore` puts them back as they were before the trace."""

    def __init__(self, known: Iterable[torch.Generator]) -> None:
        every = [*default_generators(), *known]
        with moving:
            self._before = {address_of(generator): (generator, generator.get_state()) for generator in every}
        self._expected: dict[int, int] = {}
        self._drawn = 0
        for generator in every:
            self.draw(generator)

    def is_known(self, generator: torch.Generator) -> bool:
        """Whether `generator` was there before the trace."""
        return address_of(generator) in self._before

    def was_set(self, generator: torch.Generator) -> bool:
        """Whether the program gave `generator` another state since the last random operator."""
        return generator.initial_seed() != self._expected[address_of(generator)]

    def any_was_set(self) -> bool:
        """Whether that is so for any of them."""
        return any(self.was_set(generator) for generator, _ in self._before.values())

    def draw(self, generator: torch.Generator) -> None:
        """Give `generator` a seed of its own, so that going back to an earlier state shows; numbers that another thread
        draws meanwhile leave it as it is."""
        self._drawn += 1
        with moving:
            generator.manual_seed(_SEED + self._drawn)
            self._expected[address_of(generator)] = generator.initial_seed()

    def restore(self) -> None:
        """Put every generator back."""
        with moving:
            for generator, state in self._before.values():
                generator.set_state(state)


def generator_in(arguments: Iterable[Any], device: torch.device) -> torch.Generator:
    """The generator that an operator with these arguments draws from for a result on `device`."""
    given = (leaf for leaf in arguments if isinstance(leaf, torch.Generator))
    if device.type != "cuda":
        return next(given, torch.default_generator)
    index = device.index if device.index is not None else torch.cuda.current_device()
    return next(given, torch.cuda.default_generators[index])


def is_own(generator: torch.Generator) -> bool:
    """Whether a generator is the user's, not one that torch has for a device."""
    return all(address_of(generator) != address_of(known) for known in default_generators())
