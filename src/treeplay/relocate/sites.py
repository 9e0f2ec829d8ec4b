"""Compares captures word by word: words that moved with something are its sites, the rest is unexplained.

capture 1   ... 7f00'1000 ... 7f00'8010 ... 55d2'0c20 ...
capture 2   ... 7f2a'5000 ... 7f31'0210 ... 55d2'0de0 ...
                tensor 0      tensor 1      nobody moved by 448
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct, unpack_from

from treeplay.relocate.movers import Deltas, Movers
from treeplay.relocate.table import Site, Who
from treeplay.values.nodes import WORD_BYTES, CaptureNotes, Memcpy

HALF_BYTES = WORD_BYTES // 2
_word_at = Struct("<Q").unpack_from
CONTENT_BUFFER = 2  # of a memcpy from host memory


@dataclass(frozen=True, slots=True)
class Word:
    """A word that differs between captures: where it is, and its value in each."""

    node: int
    buffer: int
    offset: int
    values: tuple[int, ...]

    @property
    def deltas(self) -> Deltas:
        """By how much it moved from the first capture to each later one."""
        return tuple(value - self.values[0] for value in self.values[1:])


@dataclass(slots=True)
class SiteSearch:
    """What a comparison found. `frozen`: tensors whose address is also where it cannot be changed, and where that is."""

    sites: dict[Who, list[Site]] = field(default_factory=lambda: defaultdict(list))
    scratch: list[Word] = field(default_factory=list)
    unexplained: list[Word] = field(default_factory=list)
    frozen: dict[Who, str] = field(default_factory=dict)


def find_sites(captures: Sequence[CaptureNotes], movers: Movers) -> SiteSearch:
    """Explain each word that differs between captures whose nodes have equal frames."""
    found = SiteSearch()
    for index, nodes in enumerate(zip(*(capture.nodes for capture in captures), strict=True)):
        for number, buffers in enumerate(zip(*(node.buffers for node in nodes), strict=True)):
            if any(buffer != buffers[0] for buffer in buffers):
                is_content = isinstance(nodes[0], Memcpy) and number == CONTENT_BUFFER
                _explain(found, movers, _BufferVersions(index, number, buffers, is_content))
    return found


@dataclass(frozen=True, slots=True)
class _BufferVersions:
    """The same buffer in each capture."""

    node: int
    number: int
    versions: tuple[bytes, ...]
    is_content: bool

    def values(self, offset: int) -> tuple[int, ...] | None:
        """Of the word at an offset, if there is a whole one."""
        if offset < 0 or offset + WORD_BYTES > len(self.versions[0]):
            return None
        return tuple([_word_at(version, offset)[0] for version in self.versions])

    def word(self, offset: int) -> Word:
        """The word at an offset; what is missing at the end of the buffer counts as zero."""
        values = (int.from_bytes(version[offset : offset + WORD_BYTES], "little") for version in self.versions)
        return Word(self.node, self.number, offset, tuple(values))

    def differing_halves(self) -> Iterator[int]:
        """Offsets, multiples of half a word, at which versions differ."""
        size = len(self.versions[0])
        whole = size // HALF_BYTES * HALF_BYTES
        first, *others = (unpack_from(f"<{whole // HALF_BYTES}I", version) for version in self.versions)
        found = {
            at for other in others for at, (half, there) in enumerate(zip(first, other, strict=True)) if half != there
        }
        yield from (at * HALF_BYTES for at in sorted(found))
        if whole < size and len({version[whole:] for version in self.versions}) > 1:
            yield whole


def _explain(found: SiteSearch, movers: Movers, buffers: _BufferVersions) -> None:
    explained: set[int] = set()
    unexplained: dict[int, Word] = {}
    for half in buffers.differing_halves():
        if half in explained:
            continue
        aligned = half - half % WORD_BYTES
        # An address need not be aligned: it may also begin at this half, or in the half before the aligned word.
        for start in (aligned, half if half != aligned else half - HALF_BYTES):
            values = buffers.values(start)
            if values is not None and _take(found, movers, buffers, start, values):
                explained |= {start, start + HALF_BYTES}
                break
        else:
            unexplained[aligned] = buffers.word(aligned)
    found.unexplained.extend(unexplained.values())


def _take(found: SiteSearch, movers: Movers, buffers: _BufferVersions, offset: int, values: tuple[int, ...]) -> bool:
    """Note whose word it is; whether anybody's."""
    first, node = values[0], buffers.node
    deltas = tuple([value - first for value in values[1:]])
    owners, is_scratch = movers.owners(first, deltas, node), movers.is_scratch(first, deltas)
    # Two may own it, or an output whose memory an intermediate had before: which of them is meant cannot be told.
    if len(owners) > 1 or (owners and is_scratch and owners[0].birth is None):
        return False
    if not owners:
        is_scratch = is_scratch or movers.ends_scratch(first, deltas)
        if is_scratch:
            found.scratch.append(Word(node, buffers.number, offset, values))
        return is_scratch
    owner = owners[0]
    if buffers.is_content:
        found.frozen[owner.who] = f"its address is in host memory that node {node} copies"
    found.sites[owner.who].append(Site(node, buffers.number, offset, first - owner.address))
    return True
