"""Nodes of a captured CUDA graph as plain values, and where tensors lay when it was captured.

Each node has two sides. Its `buffers` are bytes that may hold addresses: the parameters of a kernel, the two ends of a
copy. Its `frame` is all the rest: two captures are of the same program if their nodes have equal frames.

    Kernel   buffers  one per parameter, or one for all that is packed      frame  function, grid, block, shared memory
    Memcpy   buffers  source, destination, contents of a host source        frame  extents, pitches, kinds of memory
    Memset   buffers  destination                                           frame  value, sizes, pitch
    Other    buffers  none                                                  frame  its kind
"""

from __future__ import annotations

from dataclasses import dataclass, field

WORD_BYTES = 8  # of an address
_INERT = frozenset({"empty", "event record", "event wait", "memory allocation", "memory release"})

Frame = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch of a function. `params` has one item per parameter, or one buffer for all of them if `is_packed`."""

    name: str
    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    params: tuple[bytes, ...]
    is_packed: bool = False

    @property
    def buffers(self) -> tuple[bytes, ...]:
        """Bytes that may hold addresses."""
        return self.params

    @property
    def frame(self) -> Frame:
        """What no tensor's address may change."""
        sizes = tuple(map(len, self.params))
        return ("kernel", self.function, self.grid, self.block, self.shared_bytes, sizes, self.is_packed)

    def __str__(self) -> str:
        return f"kernel {self.name}"


@dataclass(frozen=True, slots=True)
class Memcpy:
    """A copy. `layout` is every number but the two addresses; `content` what a source in host memory held."""

    source: int
    destination: int
    source_kind: str
    destination_kind: str
    layout: tuple[int, ...]
    content: bytes | None = None

    @property
    def buffers(self) -> tuple[bytes, ...]:
        """Bytes that may hold addresses."""
        ends = (word_bytes(self.source), word_bytes(self.destination))
        return ends if self.content is None else (*ends, self.content)

    @property
    def frame(self) -> Frame:
        """What no tensor's address may change."""
        size = None if self.content is None else len(self.content)
        return ("memcpy", self.source_kind, self.destination_kind, self.layout, size)

    def __str__(self) -> str:
        return f"memcpy from {self.source_kind} to {self.destination_kind}"


@dataclass(frozen=True, slots=True)
class Memset:
    """A fill."""

    destination: int
    value: int
    element_bytes: int
    width: int
    height: int
    pitch: int

    @property
    def buffers(self) -> tuple[bytes, ...]:
        """Bytes that may hold addresses."""
        return (word_bytes(self.destination),)

    @property
    def frame(self) -> Frame:
        """What no tensor's address may change."""
        return ("memset", self.value, self.element_bytes, self.width, self.height, self.pitch)

    def __str__(self) -> str:
        return "memset"


@dataclass(frozen=True, slots=True)
class Other:
    """A node whose parameters are not read."""

    kind: str

    @property
    def buffers(self) -> tuple[bytes, ...]:
        """None are known."""
        return ()

    @property
    def frame(self) -> Frame:
        """Its kind."""
        return ("other", self.kind)

    @property
    def is_opaque(self) -> bool:
        """Whether it may hold addresses that nobody sees."""
        return self.kind not in _INERT

    def __str__(self) -> str:
        return self.kind


GraphNode = Kernel | Memcpy | Memset | Other


@dataclass(frozen=True, slots=True)
class Placed:
    """Where tensor `index` lay at a capture: its data pointer, and its storage as `start` and `nbytes`.

    `start` is by default the data pointer, which is right for a tensor that starts where its storage starts.
    `birth`: of an output, how many nodes there were when its memory was allocated, if that is known. Earlier nodes that
    hold addresses in it mean something else, which was gone by then.
    """

    index: int
    address: int
    nbytes: int
    start: int = -1
    birth: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0:
            object.__setattr__(self, "start", self.address)

    @property
    def end(self) -> int:
        """The first byte after the storage."""
        return self.start + self.nbytes


@dataclass(frozen=True, slots=True)
class Allocation:
    """One allocation during a capture: `nbytes` as they were asked for.

    `end` is the first byte after it as the allocator rounds it up: asked for very often, so kept.
    """

    address: int
    nbytes: int
    end: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "end", self.address + -(-max(self.nbytes, 1) // 512) * 512)

    def overlaps(self, other: Allocation) -> bool:
        """Whether the two have bytes in common."""
        return self.address < other.end and other.address < self.end


@dataclass(frozen=True, slots=True)
class CaptureNotes:
    """One capture: its nodes in order of creation, and where things lay meanwhile.

    tensors: those whose addresses may be patched later, the same in each capture of a program.
    outputs: the storages that results live in, made during the capture; likewise.
    blocks: every allocation during the capture, in order; None if that was not seen.
    """

    nodes: tuple[GraphNode, ...]
    tensors: tuple[Placed, ...] = ()
    outputs: tuple[Placed, ...] = ()
    blocks: tuple[Allocation, ...] | None = field(default=None)

    def __str__(self) -> str:
        blocks = "unknown" if self.blocks is None else len(self.blocks)
        return f"{len(self.nodes)} nodes, {len(self.tensors)} tensors, {len(self.outputs)} outputs, {blocks} blocks"


def word_bytes(value: int) -> bytes:
    """A word as it lies in memory."""
    return value.to_bytes(WORD_BYTES, "little")
