"""Words that depend on addresses without being addresses: shifted, negated, differences, sums, halves of any of these.

Such a word cannot be rewritten by adding how far a tensor moved, so what it depends on must not move. Words are compared by
how far they moved, which is a number of its own for each tensor, so that agreement by chance does not happen; except that small
numbers, and words that moved equally far each time, are what rubbish in padding often looks like. These prove nothing.

                     in the first, the second, the third capture    how far from the first
    tensor x         0x1000      0x5400      0x2a00                 +0x4400     +0x1a00
    tensor y         0x9000      0x9800      0x6000                 +0x0800     -0x3000
    x + 0x100        0x1100      0x5500      0x2b00                 as x: an address in x, which can be rewritten
    x >> 4           0x0100      0x0540      0x02a0                 a sixteenth of x: a function of x (`_singles`)
    y - x            0x8000      0x4400      0x3600                 as y less as x: a function of both (`_of_pairs`)
    padding          0x7ffe      0x8ffe      0x8ffe                 +0x1000 and +0x1000: proves nothing
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, reduce
from math import gcd
from operator import or_

from treeplay.relocate.movers import Deltas, Mover, Movers
from treeplay.relocate.sites import HALF_BYTES, Word
from treeplay.relocate.table import Who

_SHIFTS = range(1, 13)  # an address divided by the size of an element, of a vector, of a page
_PAIR_SHIFTS = range(5)  # a distance divided by the size of an element
_HALF = 1 << (8 * HALF_BYTES)
_WORD = _HALF * _HALF
_TELLING = 64  # how far a word must have moved at least to tell anything

Owners = dict[Deltas, set[Who]]
Half = Sequence[int]  # of a word, its value in each capture


class Relations:
    """Finds what a word depends on. `modulus` in its functions: words and halves of words wrap around."""

    def __init__(self, movers: Movers) -> None:
        self._movers = {mover.who: mover for mover in movers.all()}
        self._scratch = tuple(movers.scratch)

    def of(self, word: Word, nearby: Iterable[Who], *, halves: bool = True, members: Sequence[Word] = ()) -> set[Who]:
        """The tensors and outputs that a word is a function of, as far as can be seen.

        `nearby`: those whose addresses the same node holds; of two addresses that make a word, one is among them.
        `halves`: look at the halves of the word too.
        `members`: where it is a member of a structure, and so may be padding, all unexplained words of its node.
        """
        around = [self._movers[who] for who in nearby]
        found = self._of_values(word.values, _WORD, around)
        if not halves:
            return found
        for half in _halves(word):
            of_half = (self._movers[who] for who in self._of_values(half, _HALF, around))
            found |= {
                mover.who
                for mover in of_half
                if not self._is_of_scratch(half, mover) and not self._is_left_over(half, mover, members)
            }
        return found

    def _is_left_over(self, half: Half, mover: Mover, members: Sequence[Word]) -> bool:
        """Whether the lower half of an address is what the stack held before, in a member that nothing was written to.

        By itself it addresses nothing. Neither its upper half, which is another one in each capture, may be among the members,
        nor a second lower half, to which it could be a distance. What it tells of alignment stays true after a move.
        """
        if not members or not _is_lower(half, mover):
            return False
        start, end = mover.span
        upper = [(start + delta) // _HALF for delta in (0, *mover.deltas)]
        if len(set(upper)) < len(upper) or end - start >= _HALF:
            return False
        others = [other for member in members for other in _halves(member)]
        return not any(_moves_like(other, upper) for other in others) and all(
            _is_lower(other, mover)
            for other in others
            if any(_is_lower(other, self._movers[who]) for who in self._singles(_moved(other, _HALF), _HALF))
        )

    def _is_of_scratch(self, half: Half, mover: Mover) -> bool:
        """Whether half an address that moved as an output did is an intermediate's, which moved alike: it lies outside."""
        return mover.deltas in self._scratch and _follows(half, mover) and not _is_lower(half, mover)

    def _of_values(self, values: Sequence[int], modulus: int, around: Sequence[Mover]) -> set[Who]:
        moved = _moved(values, modulus)
        # Rubbish in padding looks like this: it moved equally far each time, or hardly at all.
        if len(set(moved)) < len(moved) or any(min(delta, modulus - delta) < _TELLING for delta in moved):
            return set()
        return self._singles(moved, modulus) or self._of_pairs(moved, modulus, around)

    def _of_pairs(self, moved: Deltas, modulus: int, around: Sequence[Mover]) -> set[Who]:
        """Two whose sum or difference it is, perhaps divided by the size of an element."""
        others, first_deltas = self._pair_tables[modulus]
        found: set[Who] = set()
        low = reduce(or_, moved)
        for shift in _PAIR_SHIFTS:
            # Whatever moved did so by multiples of the step, and so does each sum or difference: this rules most words out.
            if (low << shift) % self._step:
                continue
            scaled = [(delta - modulus if delta >= modulus // 2 else delta) << shift for delta in moved]
            for combine in _COMBINATIONS:
                # Almost no word is related to anything: one set of numbers settles that before anything is built.
                if first_deltas.isdisjoint([combine(scaled[0], mover.deltas[0]) % modulus for mover in around]):
                    continue
                for mover in around:
                    pairs = zip(scaled, mover.deltas, strict=True)
                    partners = others.get(tuple(combine(delta, own) % modulus for delta, own in pairs))
                    if partners is not None:
                        found |= {mover.who, *partners}
        return found

    @cached_property
    def _step(self) -> int:
        """The largest power of two that divides how far anything moved, and with it sums and differences."""
        everything = (*(mover.deltas for mover in self._movers.values()), *self._scratch)
        common = gcd(*(delta for deltas in everything for delta in deltas), _HALF)
        return common & -common

    def _singles(self, moved: Deltas, modulus: int) -> set[Who]:
        """Of whose address alone such a word is made: itself or its negative, perhaps shifted."""
        cut = self._cut[modulus]
        found = set()
        for sign in (1, -1):
            first = sign * moved[0]
            # `first - 1`: what the shift cut off may have carried one.
            for mover, shift in (*cut.get(first % modulus, ()), *cut.get((first - 1) % modulus, ())):
                if all(
                    now in [sign * delta % modulus for delta in _shifted(whole, shift)]
                    for now, whole in zip(moved, mover.deltas, strict=True)
                ):
                    found.add(mover.who)
        return found

    @cached_property
    def _cut(self) -> dict[int, dict[int, list[tuple[Mover, int]]]]:
        """By modulus: what moved to the second capture by so much when its address is shifted, and the shift."""
        tables = {}
        for modulus in (_WORD, _HALF):
            found: dict[int, list[tuple[Mover, int]]] = defaultdict(list)
            for mover in self._movers.values():
                for shift in (0, *_SHIFTS):
                    found[(mover.deltas[0] >> shift) % modulus].append((mover, shift))
            tables[modulus] = found
        return tables

    @cached_property
    def _pair_tables(self) -> dict[int, tuple[Owners, set[int]]]:
        """How far things moved, intermediates too (those belong to nobody); and how far to the second capture alone."""
        tables = {}
        for modulus in (_WORD, _HALF):
            owners: Owners = defaultdict(set)
            for who, mover in self._movers.items():
                owners[tuple(delta % modulus for delta in mover.deltas)].add(who)
            for deltas in self._scratch:
                owners.setdefault(tuple(delta % modulus for delta in deltas), set())
            tables[modulus] = owners, {moved[0] for moved in owners}
        return tables


# What the other address must have moved by, if the word is own + other, own - other or other - own.
_COMBINATIONS: tuple[Callable[[int, int], int], ...] = (
    lambda delta, own: delta - own,
    lambda delta, own: own - delta,
    lambda delta, own: delta + own,
)


def _halves(word: Word) -> tuple[Half, Half]:
    return [value % _HALF for value in word.values], [value // _HALF for value in word.values]


def _moved(values: Sequence[int], modulus: int) -> Deltas:
    return tuple((value - values[0]) % modulus for value in values[1:])


def _follows(half: Half, mover: Mover) -> bool:
    return _moved(half, _HALF) == tuple(delta % _HALF for delta in mover.deltas)


def _is_lower(half: Half, mover: Mover) -> bool:
    """Whether it is the lower half of an address inside."""
    start, end = mover.span
    return _follows(half, mover) and (half[0] - start) % _HALF < end - start


def _moves_like(half: Half, upper: Sequence[int]) -> bool:
    """Whether it is made of the upper half of an address, to which the lower half may carry one."""
    pairs = zip(_moved(half, _HALF), upper[1:], strict=True)
    return all((value - (other - upper[0]) + 1) % _HALF <= 2 for value, other in pairs)


def _shifted(delta: int, shift: int) -> tuple[int, ...]:
    """By how much a shifted address may have moved: what was cut off may carry one."""
    cut = delta >> shift
    return (cut, cut + 1) if delta & ((1 << shift) - 1) else (cut,)
