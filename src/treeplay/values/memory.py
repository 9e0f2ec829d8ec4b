"""From memory to references: what lies in an input is a view of it, everything else is new, each storage once.

    inputs        0 ▕██████████▏                1 ▕██████▏
    new memory                    0 ▕████████▏
    outputs           ▕████▏        ▕████████▏  ▕██████▏ ▕██▏
                      View(SameAsInput(0), …)  Fresh(0)  View(SameAsInput(1), …)  Fresh(1)

Nothing else knows how outputs share memory: not the trace's fakes, not a recorded run's tensors, not a compiled graph's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

from treeplay.values.layout import Layout
from treeplay.values.output import Cast, Fresh, SameAsInput, View
from treeplay.values.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class Extent:
    """The memory of a tensor, in bytes: its storage, of `size` bytes, and where in that its first element is. `begin` is the
    address at which the storage begins; that of a tensor without data has none.
    """

    storage: Hashable
    begin: int | None
    size: int
    offset: int
    spec: TensorSpec

    @property
    def address(self) -> int:
        """Where the first element is; without data it counts from where the storage begins."""
        return (self.begin or 0) + self.offset

    @property
    def whole(self) -> Extent:
        """All of the storage, as elements of the same dtype in a row; itself if it is all of it."""
        if self.offset == 0 and self.spec.nbytes == self.size:
            return self
        length = self.size // self.spec.dtype.itemsize
        return replace(self, offset=0, spec=TensorSpec((length,), (1,), self.spec.dtype, self.spec.device))

    def is_within(self, other: Extent) -> bool:
        """Whether its bytes are among those from the first to the last of `other`."""
        return other.address <= self.address and self.address + self.spec.nbytes <= other.address + other.spec.nbytes

    def is_like(self, other: Extent) -> bool:
        """Whether it is the same bytes, read in the same way."""
        mine, others = self.spec, other.spec
        is_alike = (mine.shape, mine.stride, mine.dtype) == (others.shape, others.stride, others.dtype)
        return is_alike and self.address == other.address


class OutputMemory:
    """Tells outputs apart by their memory. Grows by what it is shown: inputs, and the `made` memory of the outputs."""

    def __init__(self, inputs: Iterable[Extent] = ()) -> None:
        self.inputs: list[Extent] = []
        self.made: list[Extent] = []
        self._given: dict[Hashable, list[int]] = {}  # by storage
        # By storage, and by where one begins: memory of others may be in two storages.
        self._new: dict[Hashable, int] = {}
        for item in inputs:
            self.add_input(item)

    def add_input(self, extent: Extent) -> None:
        """Take in one more input."""
        self._given.setdefault(extent.storage, []).append(len(self.inputs))
        self.inputs.append(extent)

    def ref(self, extent: Extent, whole: Extent) -> Fresh | View | None:
        """The reference to a tensor in `extent`. Where that is new memory, `whole` is what a graph returns for it.

        A `Fresh` is given out once: what has the same layout later is another tensor, a view. None for a view of another
        dtype that reads memory outside of the tensor it would be a view of.
        """
        owners = self.owners(extent)
        if owners:
            index = next((at for at in owners if extent.is_within(self.inputs[at])), owners[0])
            return view_of(SameAsInput(index), self.inputs[index], extent)
        keys = [("storage", extent.storage), *([("begin", extent.begin)] if extent.begin and extent.size else [])]
        index = next((self._new[key] for key in keys if key in self._new), len(self.made))
        if index == len(self.made):
            self._new |= dict.fromkeys(keys, index)
            self.made.append(whole)
            if extent.is_like(whole):
                return Fresh(index)
        return view_of(Fresh(index), self.made[index], extent)

    def owners(self, extent: Extent) -> list[int]:
        """The inputs in whose storage `extent` lies; those of the very storage alone if there are any."""
        own = self._given.get(extent.storage)
        if own is not None or extent.begin is None:
            return own or []
        return [
            at
            for at, item in enumerate(self.inputs)
            if item.begin is not None and item.begin <= extent.begin < item.begin + item.size
        ]


def view_of(of: Fresh | SameAsInput | View, base: Extent, extent: Extent) -> View | None:
    """`extent` as a view of `base`; None if it reads another dtype, and outside of `base`."""
    spec, distance = extent.spec, extent.address - base.address
    if spec.dtype == base.spec.dtype and distance % spec.dtype.itemsize == 0:
        return View(of, Layout(spec.shape, spec.stride, distance // spec.dtype.itemsize))
    # What is read anew has to begin and end where elements of both dtypes do.
    size, unit = base.spec.dtype.itemsize, max(base.spec.dtype.itemsize, spec.dtype.itemsize)
    start, end = distance // unit * unit, -(-(distance + spec.nbytes) // unit) * unit
    if start < 0 or end > base.spec.nbytes or (distance - start) % spec.dtype.itemsize:
        return None
    one, other = base.spec.dtype, spec.dtype
    is_complex = one.is_complex != other.is_complex and one.to_real() == other.to_real()
    cast = Cast(spec.dtype, start // size, (end - start) // size, is_complex)
    return View(of, Layout(spec.shape, spec.stride, (distance - start) // spec.dtype.itemsize), cast=cast)
