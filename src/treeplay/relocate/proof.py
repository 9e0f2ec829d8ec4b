"""The proof: the bytes that patching would write must be the bytes that the captures have.

It starts from the first capture, moves everything to where it lay at another, and compares byte by byte. It shares no code
with the search for sites, so that a fault there shows here. Words that nobody explained are left out: they are padding, or
what they may depend on stays where it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from treeplay.relocate.sites import SiteSearch
from treeplay.relocate.table import Who
from treeplay.values.nodes import WORD_BYTES, CaptureNotes, word_bytes

BufferId = tuple[int, int]  # node and buffer


def first_failure(captures: Sequence[CaptureNotes], found: SiteSearch) -> str | None:
    """The first byte that is not as predicted, in words. It says that nothing of what was found can be trusted."""
    ignored: dict[BufferId, list[int]] = defaultdict(list)
    for word in found.unexplained:
        ignored[word.node, word.buffer].append(word.offset)
    for number in range(1, len(captures)):
        for (node, buffer), data in predict(captures, found, number).items():
            actual = captures[number].nodes[node].buffers[buffer]
            for offset in ignored[node, buffer]:
                data[offset : offset + WORD_BYTES] = actual[offset : offset + WORD_BYTES]
            if data != actual:
                wrong = next(at for at, (byte, there) in enumerate(zip(data, actual, strict=True)) if byte != there)
                where = f"byte {wrong} of buffer {buffer} of node {node} ({captures[0].nodes[node]})"
                return f"{where} in capture {number + 1} is not what was predicted from the first"
    return None


def predict(captures: Sequence[CaptureNotes], found: SiteSearch, number: int) -> Mapping[BufferId, bytearray]:
    """The buffers of capture `number` as far as they are not those of the first one."""
    first, other = captures[0], captures[number]
    predicted = {
        (node, buffer): bytearray(data)
        for node, (mine, theirs) in enumerate(zip(first.nodes, other.nodes, strict=True))
        for buffer, (data, actual) in enumerate(zip(mine.buffers, theirs.buffers, strict=True))
        if data != actual
    }
    places: dict[Who, int] = {("tensor", place.index): place.address for place in other.tensors}
    places |= {("output", place.index): place.address for place in other.outputs}
    for who, sites in found.sites.items():
        for site in sites:
            _write(predicted, first, (site.node, site.buffer), site.offset, places[who] + site.addend)
    for word in found.scratch:
        _write(predicted, first, (word.node, word.buffer), word.offset, word.values[number])
    return predicted


def _write(predicted: dict[BufferId, bytearray], first: CaptureNotes, key: BufferId, offset: int, value: int) -> None:
    if key not in predicted:  # nothing differs there: then nothing that is written may differ either
        predicted[key] = bytearray(first.nodes[key[0]].buffers[key[1]])
    predicted[key][offset : offset + WORD_BYTES] = word_bytes(value % (1 << (8 * WORD_BYTES)))
