"""What to make of words that nobody explains: padding, or a reason why something must not move.

    a function of addresses (see relations.py)          those tensors must not move
    moved with a tensor in one capture, not in all      nor that one
    an address that may be meant, in each capture       nor the tensors that it points into; if there are none, nothing
    anything else                                       padding: the node does not read it

Padding is common and full of rubbish: what the stack held before, unused entries of tables, the byte of an empty structure.
Some of it is stale device addresses. But those are addresses of another capture, or of none; a real one is good in each.
Some is half an address of this very capture. But a half that is meant has its other half beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from treeplay.relocate.memory import KnownMemory, Stretches
from treeplay.relocate.movers import Mover, Movers
from treeplay.relocate.relations import Relations
from treeplay.relocate.sites import CONTENT_BUFFER, SiteSearch, Word
from treeplay.relocate.table import Who
from treeplay.values.nodes import WORD_BYTES, CaptureNotes, Kernel, Memcpy
from treeplay.values.overlap import Interval


@dataclass(slots=True)
class Blame:
    """Reasons by tensor or output; `everybody`: a reason that holds for all; `padding`: words that mean nothing."""

    reasons: dict[Who, str] = field(default_factory=dict)
    everybody: str | None = None
    padding: list[Word] = field(default_factory=list)


def blame(found: SiteSearch, captures: Sequence[CaptureNotes], movers: Movers, ranges: Sequence[Interval]) -> Blame:
    """Judge each unexplained word. `ranges`: device memory, as far as it is known."""
    judged = Blame(dict(found.frozen))
    judge = _Judge(captures, movers, KnownMemory(captures, ranges), found)
    for word in found.unexplained:
        suspects, why = judge.suspects(word)
        text = f"a word of node {word.node} ({captures[0].nodes[word.node]}) {why}: {_shown(word)}"
        if suspects:
            judged.reasons |= {who: text for who in suspects if who not in judged.reasons}
        elif why:
            judged.everybody = text
        else:
            judged.padding.append(word)
    return judged


class _Judge:
    """What is asked about a word."""

    def __init__(
        self, captures: Sequence[CaptureNotes], movers: Movers, memory: KnownMemory, found: SiteSearch
    ) -> None:
        self.captures = captures
        # Where movers lay at each capture, and at the first one, of whom a word may be that moved.
        everyone = movers.all()
        self.at_capture = [
            Stretches((*_moved(mover, number), mover) for mover in everyone) for number in range(len(captures))
        ]
        self.relations = Relations(movers)
        self.memory = memory
        self.unexplained: dict[int, list[Word]] = defaultdict(list)
        for word in found.unexplained:
            self.unexplained[word.node].append(word)
        self.nearby: dict[int, set[Who]] = defaultdict(set)
        for who, sites in found.sites.items():
            for site in sites:
                self.nearby[site.node].add(who)

    def suspects(self, word: Word) -> tuple[set[Who], str]:
        """What the word may depend on, and how. How, but nothing: it depends on something unknown. Neither: it is padding."""
        depends = self.computed_from(word)
        if depends:
            return depends, "is computed from its address"
        followed, is_address = self.followed(word), self.is_address(word)
        if followed:
            return followed | (self.pointed_at(word) if is_address else set()), "moves with it only in some captures"
        if is_address:
            return self.pointed_at(word), "is a device address that nothing explains"
        return set(), ""

    def computed_from(self, word: Word) -> set[Who]:
        """The tensors and outputs that it is a function of. Half a stale address is none."""
        is_stale = any(map(self.memory.is_known, word.values)) and not self.is_address(word)
        members = self.unexplained[word.node] if self.is_member(word) else ()
        return self.relations.of(word, self.nearby[word.node], halves=not is_stale, members=members)

    def is_member(self, word: Word) -> bool:
        """Whether it is a part of a structure, which may have padding, and no parameter by itself, as far as that is known."""
        node = self.captures[0].nodes[word.node]
        return isinstance(node, Kernel) and not node.is_packed and len(node.params[word.buffer]) > WORD_BYTES

    def followed(self, word: Word) -> set[Who]:
        """Those that it points into in the first capture and moved with in another one."""
        deltas = word.deltas
        return {
            mover.who
            for mover in self.at_capture[0].holding(word.values[0])
            # Without a known birth, any node may mean it.
            if (mover.birth or 0) <= word.node and any(a == b != 0 for a, b in zip(deltas, mover.deltas, strict=True))
        }

    def pointed_at(self, word: Word) -> set[Who]:
        """The tensors and outputs that its values point into."""
        return {
            mover.who
            for value, stretches in zip(word.values, self.at_capture, strict=True)
            for mover in stretches.holding(value)
        }

    def is_address(self, word: Word) -> bool:
        """Whether it may be an address that is meant, in each capture."""
        node, memory = self.captures[0].nodes[word.node], self.memory
        if isinstance(node, Memcpy) and word.buffer == CONTENT_BUFFER:
            return any(map(memory.is_known, word.values))
        if not isinstance(node, Kernel):
            return True
        if not node.is_packed and len(node.params[word.buffer]) == WORD_BYTES:  # alone, so no padding; it may be null
            return any(word.values) and all(memory.is_known(value) or not value for value in word.values)
        return all(memory.may_mean(value, number) for number, value in enumerate(word.values))


def _moved(mover: Mover, number: int) -> Interval:
    """Where a mover lay at a capture."""
    delta = (0, *mover.deltas)[number]
    return mover.span[0] + delta, mover.span[1] + delta


def _shown(word: Word) -> str:
    return ", ".join(f"{value:#x}" for value in word.values)
