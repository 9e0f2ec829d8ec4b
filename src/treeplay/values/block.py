"""The saved block: one allocation for what a forward leaves for its backward alone, each value at a fixed place in it.

apart      | a | | b | | c |        three tensors, three addresses
in a block | a |···| b | c |···|    one tensor of bytes, one address; each begins where torch's allocator would let it
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from treeplay.values.spec import TensorSpec

PLACE_BYTES = 512
"""Each value begins at a multiple of this: so does what torch's allocator gives on a GPU, and kernels are chosen by that."""


@dataclass(frozen=True, slots=True)
class OutputBlock:
    """Which outputs of some work share one allocation of `nbytes`, each with the byte at which it begins there."""

    places: tuple[tuple[int, int], ...]
    nbytes: int

    @classmethod
    def of(cls, sizes: Iterable[tuple[int, int]]) -> OutputBlock:
        """The block of outputs, each with its bytes: one behind the other."""
        places, end = [], 0
        for output, nbytes in sizes:
            places.append((output, end))
            end += -(-nbytes // PLACE_BYTES) * PLACE_BYTES
        return cls(tuple(places), end)

    def __contains__(self, output: int) -> bool:
        return any(output == inside for inside, _ in self.places)

    def __str__(self) -> str:
        return f"{len(self.places)} outputs in {self.nbytes} bytes"


@dataclass(frozen=True, slots=True)
class SavedPart:
    """A value that lies in a saved block, from byte `begin` on."""

    begin: int
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class SavedLayout:
    """What lies in a forward's saved block: a part for each value that only the backward sees, None for one that does not
    lie there. In a list, those that do not come first, then the block, in the place of all of them."""

    parts: tuple[SavedPart | None, ...]
    nbytes: int

    @property
    def apart(self) -> int:
        """How many values do not lie in the block."""
        return sum(part is None for part in self.parts)

    def order(self, first: int, count: int) -> list[int | None]:
        """A list of `count` values, of which those from `first` on are these, as it is with the block: for each of its places,
        the index of the value there, None for the block."""
        apart = [at for at, part in enumerate(self.parts, first) if part is None]
        return [*range(first), *apart, None, *range(first + len(self.parts), count)]

    def __str__(self) -> str:
        return f"{len(self.parts) - self.apart} of {len(self.parts)} saved values in {self.nbytes} bytes"
