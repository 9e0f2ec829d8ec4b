"""The random generators of a recording on the host: which may be drawn from, and whether a replay draws the same way.

A replay runs the operators that draw, and nothing in between: a generator whose state the body sets before or after a draw
(`torch.manual_seed`, `fork_rng`, a checkpoint that restores it) would go on differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from treeplay.device.host.rules import seed_was_set, state_was_set, unregistered
from treeplay.sandbox.generators import has_company
from treeplay.torch_seam.schemas import is_random, leaves_of
from treeplay.torch_seam.tensors import address_of
from treeplay.values.refusal import Reason


class Draws:
    """The generators that a body may draw from, and their states before it and after its last draw."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self._generators = {address_of(generator): generator for generator in generators}
        self._default = address_of(generators[0])
        self._before: dict[int, torch.Tensor] = {}
        self._latest: dict[int, torch.Tensor] = {}
        self._after: dict[int, torch.Tensor] = {}
        self._seeds: dict[int, tuple[int, int]] = {}
        self._drawn: dict[int, Reason] = {}  # what is said of the last draw if the generator is set after it
        self._is_shared = False

    def begin(self) -> None:
        """Note the states, to be put back at the end."""
        self._is_shared = has_company()
        self._before = {address: generator.get_state() for address, generator in self._generators.items()}
        self._latest = dict(self._before)
        self._seeds = {address: (generator.initial_seed(), 0) for address, generator in self._generators.items()}

    def end(self) -> None:
        """Note where they stand before they are put back."""
        for address, generator in self._generators.items():
            self._after[address] = generator.get_state()
            self._seeds[address] = self._seeds[address][0], generator.initial_seed()

    def refusal_of(self, op: Any, args: Any, kwargs: Any) -> Reason | None:
        """Why an operator cannot draw what a replay would draw, or None."""
        for address in self._drawn_by(op, args, kwargs):
            if address not in self._generators:
                return unregistered(op)
            if not torch.equal(self._generators[address].get_state(), self._latest[address]):
                return state_was_set(op, is_shared=self._is_shared or has_company())
        return None

    def note(self, op: Any, args: Any, kwargs: Any) -> None:
        """An operator has drawn."""
        for address in self._drawn_by(op, args, kwargs):
            self._latest[address] = self._generators[address].get_state()
            self._drawn[address] = state_was_set(op, is_shared=self._is_shared)

    def refusal_at_end(self) -> Reason | None:
        """Why generators would not stand after a replay where they stood at the end, or None. One that was not drawn from may
        have moved because another thread draws."""
        for address, (before, after) in self._seeds.items():
            drawn = self._drawn.get(address)
            if drawn is not None and not torch.equal(self._after[address], self._latest[address]):
                return drawn
            if drawn is None and before != after:
                return seed_was_set()
        return None

    def restorers(self) -> list[Callable[[], object]]:
        """What puts each generator back; where other threads are, each that the body has drawn from, or that was seeded."""
        moved: Iterable[int] = self._before
        if self._is_shared or has_company():
            seeded = (at for at, known in self._generators.items() if known.initial_seed() != self._seeds[at][0])
            moved = {*self._drawn, *seeded}
        return [partial(self._generators[address].set_state, self._before[address]) for address in moved]

    def _drawn_by(self, op: Any, args: Any, kwargs: Any) -> list[int]:
        given = [address_of(leaf) for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Generator)]
        return given or ([self._default] if is_random(op) else [])
