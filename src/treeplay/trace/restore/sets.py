"""Sets as they were, down to where each item lies in memory: that decides the order in which a set is iterated and popped.

A set keeps its items in a table, each in the first slot that was free of those that its hash leads to. `pop` goes on from the
slot after that of the last item popped, its finger. Both are read from memory, on a Python that is known to keep them so, and
come about again by adding the items in a fitting order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from ctypes import c_uint64, string_at
from functools import lru_cache
from itertools import count, islice
from typing import Any

from treeplay.guards.check.object_layout import WORD, is_known_python
from treeplay.sandbox.generators import has_company

_FIELDS = 2 * WORD  # where they begin: slots used, items, mask, table, hash, finger
_SMALLEST = 8  # slots of a table
_NEIGHBOURS = 9  # slots that are tried one after another
_MOST_SLOTS = 1 << 16  # of a table that is laid out again; in a larger one items only get back in

SlotsOfSet = tuple[int, int, bytes]
"""How many slots, less one: the mask of hashes; the finger; and each slot: where its item is, and the item's hash."""


class SetBefore(set[Any]):
    """What a set held, and its table; None where that is not known, is large, or may be changed by other threads while it is
    read."""

    __slots__ = ("table",)

    def __init__(self, value: set[Any]) -> None:
        super().__init__(set.__iter__(value))
        is_read = _is_known() and not has_company() and len(self) < _MOST_SLOTS
        self.table = _table(value) if is_read else None

    def fill(self, value: set[Any]) -> None:
        """Make `value` hold this again, in the same slots."""
        if self.table is None or not self._lay_out(value, *self.table):
            set.clear(value)
            set.update(value, self)

    def has_finger_of(self, value: set[Any]) -> bool:
        """Whether the next `pop` of `value` looks where it would have looked."""
        return self.table is None or _table(value)[1] == self.table[1]

    def _lay_out(self, value: set[Any], mask: int, finger: int, slots: bytes) -> bool:
        items = {id(item): item for item in set.__iter__(self)}
        filled = [(slot, *entry) for slot, entry in enumerate(struct.iter_unpack("QQ", slots)) if entry[0]]
        there = {slot: (items[address], number) for slot, address, number in filled if address in items}
        stones = {slot: _Stone(slot) for slot, address, _ in filled if address not in items}  # where items were once
        order = {**stones, **_in_order(there, mask, stones.keys())}
        # A set gets as many slots by being given a quarter of them at once.
        wanted = _at_once(mask)
        free = (slot for slot in range(mask, -1, -1) if slot not in order)
        more = {slot: _Stone(slot) for slot in islice(free, max(wanted - len(order), 0))}
        added = [*order.values(), *more.values()]
        set.clear(value)
        _put_finger(value, finger or mask + 1)
        set.update(value, dict.fromkeys(added[:wanted]))
        set.update(value, added[wanted:])
        _take_out(value, (*stones.values(), *more.values()))
        return [*map(id, set.__iter__(value))] == [id(there[slot][0]) for slot in sorted(there)]


class _Stone:
    """Takes up a slot of a set."""

    __slots__ = ("_slot",)

    def __init__(self, slot: int) -> None:
        self._slot = slot

    def __hash__(self) -> int:
        return self._slot | 1 << 50  # as that of no item


def _table(value: set[Any]) -> SlotsOfSet:
    _, _, mask, slots, _, finger = (c_uint64 * 6).from_address(id(value) + _FIELDS)
    return mask, finger, string_at(slots, (mask + 1) * 2 * WORD)


def _at_once(mask: int) -> int:
    """How many items an empty set has to be given at once for a table with this mask."""
    return max((mask + 1) // 4, 5) if mask >= _SMALLEST else 0


def _put_finger(value: set[Any], finger: int) -> None:
    """Have an empty set pop one item such that its finger is here."""
    slots = _SMALLEST
    while slots < min(finger, _MOST_SLOTS):
        slots *= 2
    last = (finger - 1) % slots
    others = [_Stone(slot) for slot in islice((slot for slot in count() if slot != last), _at_once(slots - 1))]
    set.update(value, dict.fromkeys([_Stone(last), *others]))
    _take_out(value, others)
    set.pop(value)
    set.clear(value)


def _take_out(value: set[Any], stones: Iterable[_Stone]) -> None:
    for stone in stones:  # one by one: a set from which many are taken at once gets another table
        set.discard(value, stone)


def _in_order(there: dict[int, tuple[Any, int]], mask: int, taken: Iterable[int]) -> dict[int, Any]:
    """Items by their slots, each after those that are in the slots that it would have got otherwise."""
    order: dict[int, Any] = {}
    taken, left, before = {*taken}, {**there}, -1
    while len(left) != before:
        before = len(left)
        for slot, (item, number) in [*left.items()]:
            if next(one for one in _tried(number, mask) if one not in taken) == slot:
                order[slot] = item
                taken.add(slot)
                del left[slot]
    return order


def _tried(number: int, mask: int) -> Iterator[int]:
    at, rest = number & mask, number
    while True:
        yield from range(at, at + (_NEIGHBOURS if at + _NEIGHBOURS <= mask else 0) + 1)
        rest >>= 5
        at = (at * 5 + 1 + rest) & mask


@lru_cache(maxsize=1)
def _is_known() -> bool:
    """Whether the tables of this Python's sets are where and what they are taken for."""
    return is_known_python() and all(map(_is_as_taken, ((3, 900), range(40), ("a", "b", "c"))))


def _is_as_taken(items: Iterable[Any]) -> bool:
    example = set(items)
    for left in range(len(example) - 1, 0, -1):
        example.pop()
        filled, used, mask, _, number, finger = (c_uint64 * 6).from_address(id(example) + _FIELDS)
        if not (used == left <= filled <= mask and number == (1 << 64) - 1 and finger <= mask + 1):
            return False
    _, _, slots = _table(example)
    found = [address for address, _ in struct.iter_unpack("QQ", slots) if address in set(map(id, example))]
    return found == [*map(id, example)]
