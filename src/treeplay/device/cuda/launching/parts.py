"""What a launch consists of: the plan that a launch function is written from, found out while its graph was captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from treeplay.device.cuda.lane import Lane
from treeplay.device.protocol import Boxing, Fill, Replay
from treeplay.values.block import OutputBlock
from treeplay.values.spec import TensorSpec

Move = Callable[[int], None]
NotLaunched = Callable[[Exception, list[torch.Tensor], Sequence[float]], Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Patched:
    """An input whose address goes into the graph when it moves. `modulus` and `residue`: how it has to be aligned."""

    index: int
    address: int
    move: Move
    modulus: int
    residue: int
    is_mutated: bool


@dataclass(frozen=True, slots=True)
class Copied:
    """An input that is read from (and if it is written, written to) a buffer of the recording's."""

    index: int
    buffer: torch.Tensor
    is_mutated: bool


@dataclass(frozen=True, slots=True)
class LaunchOutput:
    """An output: a new tensor on each replay, to whose address the graph writes; or `held` by the graph and copied.

    One that only becomes the gradient of the tensor at `leaf` replaces what the last replay has left there: if nobody
    else has a hold on that, the graph writes to it again. Where it cannot, the gradient there goes first if the launch `clears`
    it: not where a program's own code, which may run instead, could ask for it.
    """

    spec: TensorSpec
    address: int
    move: Move | None
    held: torch.Tensor | None = None
    leaf: int | None = None
    clears: bool = True


@dataclass(frozen=True, slots=True)
class LaunchBlock:
    """The outputs that are made as one `block`. `move` takes its address: what lies in it moves by the same distance."""

    block: OutputBlock
    device: torch.device
    move: Move


@dataclass(frozen=True, slots=True)
class Otherwise:
    """What a call does that cannot be launched: `plain` where a tensor lies elsewhere, `not_launched` with an exception that
    came before the launch."""

    plain: Replay
    not_launched: NotLaunched


@dataclass(frozen=True, slots=True)
class LaunchParts:
    """What a launch consists of.

    `addresses` of all inputs; `steady` are those that seldom move, asked about in one go; `moved` is called if one has. Results
    that lie in the `block` are not moved one by one.
    """

    lane: Lane
    replay: Callable[[], None]
    otherwise: Otherwise
    vector: Fill | None
    steady: tuple[int, ...]
    addresses: list[int]
    moved: Callable[[list[torch.Tensor]], None]
    patched: tuple[Patched, ...]
    copied: tuple[Copied, ...]
    results: tuple[LaunchOutput, ...]
    align: Callable[[torch.Tensor, int, int], torch.Tensor]
    boxing: Boxing | None = None
    block: LaunchBlock | None = None

    def is_inside(self, at: int) -> bool:
        """Whether a result lies in the block."""
        return self.block is not None and at in self.block.block
