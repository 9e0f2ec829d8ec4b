"""From captures of one program, with its tensors at different places, to a table of the words that hold their addresses.

    captures ── movers ▶ who moved how far ── sites ▶ words that moved with them ── blame ▶ what the rest means
                                                                                      └─ proof ▶ table

    first, second, third = (captured(k) for k in range(3))      # values.nodes.CaptureNotes
    table = relocate([first, second, third], ranges=device_ranges())
    for row in table.rows:
        print(row)                                              # tensor 0: 3 sites in 2 nodes, modulo 256

The first capture is the one to be replayed. In each of the others every tensor that shall be movable lies elsewhere, by a
distance of its own; outputs lie elsewhere in at least one, which is so if those of the capture before are still alive. With
three or more captures, the table is proven: what patching the first one would write was compared with the others, byte by
byte. A tensor that fails has its reason in its row. Pure: needs neither torch nor a GPU.

Outputs are storages, not tensors: several outputs that are views of one storage move together and are one item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treeplay.errors import InternalError
from treeplay.relocate.blame import blame
from treeplay.relocate.movers import Movers, find_movers
from treeplay.relocate.proof import first_failure
from treeplay.relocate.sites import SiteSearch, find_sites
from treeplay.relocate.table import Relocation, Row, Site, Who, WhoKind, common_alignment, joined
from treeplay.values.nodes import CaptureNotes, Memcpy, Other, Placed
from treeplay.values.overlap import Interval

__all__ = ["Relocation", "Row", "Site", "joined", "relocate"]

_ENOUGH = 3


def relocate(captures: Sequence[CaptureNotes], *, ranges: Sequence[Interval] = ()) -> Relocation:
    """The relocation table of the first of at least three captures. `ranges`: device memory, as starts and ends."""
    if len(captures) < _ENOUGH:
        raise InternalError(f"relocation is proven from {_ENOUGH} captures or more, found {len(captures)}")
    reason = why_incomparable(captures)
    if reason is not None:
        return _table(captures, Movers(), SiteSearch(), {}, reason)
    movers = find_movers(captures)
    found = find_sites(captures, movers)
    judged = blame(found, captures, movers, ranges)
    everybody = judged.everybody or first_failure(captures, found)
    table = _table(captures, movers, found, movers.fixed | judged.reasons, everybody)
    return replace(table, padding_words=len(judged.padding))


def why_incomparable(captures: Sequence[CaptureNotes]) -> str | None:
    """Why nothing at all can be moved: the captures are not of the same nodes, or hold what cannot be read."""
    first = captures[0]
    for number, other in enumerate(captures[1:], 2):
        if len(other.nodes) != len(first.nodes):
            return f"capture {number} has {len(other.nodes)} nodes, the first one {len(first.nodes)}"
        for index, (a, b) in enumerate(zip(first.nodes, other.nodes, strict=True)):
            if a.frame != b.frame:
                return f"node {index} of capture {number} is another ({b}) than in the first one ({a})"
    for index, node in enumerate(first.nodes):
        if isinstance(node, Other) and node.is_opaque:
            return f"node {index} is a {node.kind}, which cannot be read"
        if isinstance(node, Memcpy) and node.source_kind == "host" and node.content is None:
            return f"node {index} copies from host memory that cannot be read"
    return None


def _table(
    captures: Sequence[CaptureNotes], movers: Movers, found: SiteSearch, reasons: dict[Who, str], everybody: str | None
) -> Relocation:
    def row(role: WhoKind, number: int, place: Placed) -> Row:
        places = [(capture.tensors if role == "tensor" else capture.outputs)[number] for capture in captures]
        leader = movers.leaders.get(place.index) if role == "tensor" else None
        # Tensors of one storage move as one: what keeps the leader in place keeps all of them.
        reason = everybody or reasons.get((role, place.index if leader is None else leader))
        sites = () if reason else tuple(found.sites.get((role, place.index), ()))
        alignment = common_alignment(other.address for other in places)
        return Row(role, place.index, place.address, alignment, sites, reason, leader)

    first = captures[0]
    tensors = tuple(row("tensor", number, place) for number, place in enumerate(first.tensors))
    outputs = tuple(row("output", number, place) for number, place in enumerate(first.outputs))
    return Relocation(tensors, outputs, len(first.nodes))
