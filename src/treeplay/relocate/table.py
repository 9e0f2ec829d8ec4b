"""The relocation table: which words of which nodes hold which tensor's address, as a finished value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

WhoKind = Literal["tensor", "output"]
Who = tuple[WhoKind, int]

MOST_ALIGNED = 256  # bytes; kernels are not chosen by more
JOINED = -1  # the index of several outputs as one


@dataclass(frozen=True, slots=True)
class Site:
    """A word: at `offset` bytes in buffer `buffer` of node `node` lies the tensor's address plus `addend`."""

    node: int
    buffer: int
    offset: int
    addend: int

    @property
    def place(self) -> tuple[int, int, int]:
        """Which word it is."""
        return self.node, self.buffer, self.offset

    def __str__(self) -> str:
        return f"node {self.node}, buffer {self.buffer}, byte {self.offset}: address{self.addend:+d}"


@dataclass(frozen=True, slots=True)
class Row:
    """All about one tensor or output. `address`: where it lay at the first capture, which is the one to be replayed.

    `reason`: why it cannot be moved, or None; the sites of one that cannot be moved are not told. `leader`: another tensor
    of the same storage. The two may only move by the same distance, and the sites of both are told in the leader's row.
    """

    role: WhoKind
    index: int
    address: int
    alignment: int
    sites: tuple[Site, ...] = ()
    reason: str | None = None
    leader: int | None = None

    @property
    def who(self) -> Who:
        """Its name among the rows of a table."""
        return self.role, self.index

    @property
    def is_patchable(self) -> bool:
        """Whether its address may be changed."""
        return self.reason is None

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes that hold its address, each once, in order."""
        return tuple(sorted({site.node for site in self.sites}))

    @property
    def residue(self) -> int:
        """What an address must leave when divided by `alignment`."""
        return self.address % self.alignment

    def accepts(self, address: int) -> bool:
        """Whether it may lie at `address`: kernels were chosen for how it was aligned in the captures."""
        return address % self.alignment == self.residue

    def __str__(self) -> str:
        if self.leader is not None:
            return f"{self.role} {self.index}: {self.reason or f'moves with tensor {self.leader}'}"
        where = f"{len(self.sites)} sites in {len(self.nodes)} nodes, modulo {self.alignment}"
        return f"{self.role} {self.index}: {self.reason or where}"


def joined(rows: Iterable[tuple[Row, int]]) -> Row:
    """Outputs that lie at fixed distances from one address, as the row of what begins at that address."""
    sites = tuple(replace(site, addend=site.addend + distance) for row, distance in rows for site in row.sites)
    return Row("output", JOINED, 0, MOST_ALIGNED, sites)


@dataclass(frozen=True, slots=True)
class Relocation:
    """What may be moved in the first capture, and how. Rows are in the order of the tensors and outputs captured.

    `nodes`: how many nodes there are. `padding_words`: words that differ between captures and mean nothing.
    """

    tensors: tuple[Row, ...]
    outputs: tuple[Row, ...]
    nodes: int
    padding_words: int = 0

    @property
    def rows(self) -> tuple[Row, ...]:
        """Tensors, then outputs."""
        return self.tensors + self.outputs

    def demoted(self) -> tuple[Row, ...]:
        """Those that cannot be moved."""
        return tuple(row for row in self.rows if not row.is_patchable)

    def without(self, nodes: Mapping[int, str]) -> Relocation:
        """The table if these nodes cannot be changed, each with the reason: what lies there, or with it, stays."""

        def reason(row: Row) -> str | None:
            return row.reason or next((nodes[at] for at in row.nodes if at in nodes), None)

        led = {row.index: reason(row) for row in self.tensors}

        def kept(row: Row) -> Row:
            why = reason(row) if row.leader is None else row.reason or led[row.leader]
            return row if why == row.reason else replace(row, reason=why, sites=())

        tensors, outputs = tuple(map(kept, self.tensors)), tuple(map(kept, self.outputs))
        return replace(self, tensors=tensors, outputs=outputs)

    def __str__(self) -> str:
        rows = self.rows
        return f"{len(rows) - len(self.demoted())} of {len(rows)} can be moved in {self.nodes} nodes"


def common_alignment(addresses: Iterable[int]) -> int:
    """The largest power of two, up to 256, modulo which all the addresses are the same."""
    first, *others = addresses
    alignment = MOST_ALIGNED
    while any((other - first) % alignment for other in others):
        alignment //= 2
    return alignment
