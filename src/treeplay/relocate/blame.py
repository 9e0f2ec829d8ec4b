"""What to make of words that nobody explains: padding, or a reason why something must not move.

    a function of addresses (see relations.py)          those tensors must not move
    a device address in each capture                    nor the tensors that it points into; if there are none, nothing
    anything else                                       padding: the node does not read it

Padding is common and full of rubbish: what the stack held before, unused entries of tables, the byte of an empty structure.
Some of it is stale device addresses, but then other things in other captures. A real address is one in each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from treeplay.facts.nodes import WORD_BYTES, Captured, Kernel, Memcpy
from treeplay.relocate.movers import Movers, Span, merged
from treeplay.relocate.relations import Relations
from treeplay.relocate.sites import CONTENT_BUFFER, Found, Word
from treeplay.relocate.table import Who


@dataclass(slots=True)
class Blame:
    """Reasons by tensor or output; `everybody`: a reason that holds for all; `padding`: words that mean nothing."""

    reasons: dict[Who, str] = field(default_factory=dict)
    everybody: str | None = None
    padding: list[Word] = field(default_factory=list)


def blame(found: Found, captures: Sequence[Captured], movers: Movers, ranges: Sequence[Span]) -> Blame:
    """Judge each unexplained word. `ranges`: device memory, as far as it is known."""
    judged = Blame(dict(found.frozen))
    judge = _Judge(captures, movers, [*ranges, *_known(captures)], _nearby(found))
    for word in found.unexplained:
        _judge(word, judge, judged)
    return judged


def _judge(word: Word, judge: _Judge, judged: Blame) -> None:
    where = f"node {word.node} ({judge.captures[0].nodes[word.node]})"
    suspects, why = judge.relations.of(word, judge.nearby[word.node]), "is computed from its address"
    if not suspects and not judge.is_address(word):
        judged.padding.append(word)
        return
    if not suspects:
        suspects, why = judge.pointed_at(word), "points into it, but not always"
    if suspects:
        text = f"a word of {where} {why}: {_shown(word)}"
        judged.reasons |= {who: text for who in suspects if who not in judged.reasons}
    else:
        judged.everybody = f"a word of {where} is a device address that nothing explains: {_shown(word)}"


class _Judge:
    """What is asked about a word."""

    def __init__(
        self,
        captures: Sequence[Captured],
        movers: Movers,
        ranges: Sequence[Span],
        nearby: dict[int, set[Who]],
    ) -> None:
        self.captures = captures
        self.movers = movers.all()
        self.relations = Relations(movers)
        self.nearby = nearby
        self._ranges = merged(ranges)

    def pointed_at(self, word: Word) -> set[Who]:
        """The tensors and outputs that its values point into."""
        return {
            mover.who
            for mover in self.movers
            for value, delta in zip(word.values, (0, *mover.deltas), strict=True)
            if mover.holds(value - delta)
        }

    def is_address(self, word: Word) -> bool:
        """Whether it is, or may be, a device address in each capture."""
        known = [self._is_within(value) for value in word.values]
        node = self.captures[0].nodes[word.node]
        if isinstance(node, Memcpy) and word.buffer == CONTENT_BUFFER:
            return any(known)
        if not isinstance(node, Kernel):
            return True
        is_alone = not node.is_packed and len(node.params[word.buffer]) == WORD_BYTES
        if is_alone:  # a parameter of its own that may be null
            return any(known) and all(is_known or not value for is_known, value in zip(known, word.values, strict=True))
        return all(known)

    def _is_within(self, value: int) -> bool:
        index = bisect_right(self._ranges, (value, 1 << 64)) - 1
        return index >= 0 and value < self._ranges[index][1]


def _known(captures: Sequence[Captured]) -> list[Span]:
    """Device memory that the captures themselves tell of."""
    places = [place for capture in captures for place in (*capture.tensors, *capture.outputs)]
    blocks = [block for capture in captures for block in capture.blocks or ()]
    return [(place.start, place.end) for place in places] + [(block.address, block.end) for block in blocks]


def _nearby(found: Found) -> dict[int, set[Who]]:
    nearby: dict[int, set[Who]] = defaultdict(set)
    for who, sites in found.sites.items():
        for site in sites:
            nearby[site.node].add(who)
    return nearby


def _shown(word: Word) -> str:
    return ", ".join(f"{value:#x}" for value in word.values)
