"""Keys that came and have no entry. They are known by hash, so that they hold no object of the user's."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

_MOST = 256


@dataclass(frozen=True, slots=True)
class Stranger:
    """How often a key came, and when it came last, by the uses of the table then."""

    times: int = 0
    when: int = -1


_UNSEEN = Stranger()


class Strangers:
    """Those that came most recently. Keys of one class share a mark."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, Stranger] = OrderedDict()

    def of(self, mark: int) -> Stranger:
        """What is known of a key."""
        return self._seen.get(mark, _UNSEEN)

    def came(self, mark: int, now: int) -> None:
        """Note that a key came once more, and got no entry."""
        self._seen[mark] = Stranger(self.of(mark).times + 1, now)
        self._seen.move_to_end(mark)
        if len(self._seen) > _MOST:
            self._seen.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._seen.clear()
