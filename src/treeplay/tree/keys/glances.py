"""What became of calls whose arguments look like those of a new one: a quick look costs less than a key.

Calls of different keys may look alike. That does no harm: a recording that does not fit says so, and a call that is left alone
runs as it is, which is always right.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from treeplay.trace.call import Call
from treeplay.tree.keys.key import glance
from treeplay.tree.table import Entry, EntryTable, Recording
from treeplay.tree.worth.budget import Pause

_MOST = 256


class Glances:
    """By what arguments look like: the recording that served the last such call, or how long such calls are left alone."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[Entry, Recording] | Pause] = {}

    def remember(self, call: Call, entry: Entry, recording: Recording) -> None:
        """Have the next call with such arguments try this recording before its key is made."""
        self._found[self._look(call)] = entry, recording

    def leave_alone(self, entry: Entry, call: Call, why: str, *, cost: float, ran: float) -> None:
        """Note that a look at a call, which took `cost` seconds, found that it runs eagerly, and `ran` so long."""
        look = self._look(call)
        known = self._found.get(look)
        pause = known if isinstance(known, Pause) else self._found.setdefault(look, Pause())
        if isinstance(pause, Pause):  # else a recording serves calls that look so
            pause.looked(entry, why, cost=cost, ran=ran, served=0)

    def find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, but: Recording | None
    ) -> tuple[Entry, Recording] | Pause | None:
        """What there is for arguments that look like these, `but` for a recording that is known not to fit."""
        look = glance(args, kwargs)
        found = self._found.get(look)
        if found is None or isinstance(found, Pause):
            return found
        entry, recording = found
        if recording not in entry.recordings:
            del self._found[look]
            return None
        return found if recording is not but else None

    def forget_gone(self, table: EntryTable) -> None:
        """Hold no recording that is dropped."""
        for look, found in list(self._found.items()):
            if not isinstance(found, Pause) and (found[1] not in found[0].recordings or not table.holds(found[0])):
                del self._found[look]

    def clear(self) -> None:
        """Forget all."""
        self._found.clear()

    def _look(self, call: Call) -> Hashable:
        if len(self._found) >= _MOST:
            self._found.clear()
        return glance(call.args, call.kwargs)
