"""The keys of one program: which key a call has, what a key leaves out, and which keys get an entry.

    call ─ find ▶ key, entry ─ is it new? ┬ varies      it differs from another only by what no key needs: find again
                                          ├ look_around a mode or fakes keep it eager
                                          ├ comes_once  its objects never come again: such calls share one entry
                                          └ admit       there is a place, and the budget is for it

What was learned about numbers and objects holds for all later calls. A new `Keys` knows nothing: that is what a reset makes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable
from typing import Any

from treeplay.observe import warn_once
from treeplay.observe.events import log_event
from treeplay.settings import settings
from treeplay.trace.call import Call, call_of
from treeplay.tree.decide import KeyPhase
from treeplay.tree.keys.key import Key, arguments_text, has_fakes, key_by_class, make_key, varying
from treeplay.tree.keys.numbers import VaryingNumbers
from treeplay.tree.keys.state_numbers import StateNumbers
from treeplay.tree.keys.strangers import Stranger, Strangers
from treeplay.tree.mismatch import key_mismatches
from treeplay.tree.reasons import OF_FAKES, under_mode
from treeplay.tree.table import Entry, EntryTable
from treeplay.tree.worth.budget import Budget, Pause
from treeplay.values.flatten import holds_tensors, may_open
from treeplay.values.location import Location
from treeplay.values.place import Trail
from treeplay.values.structure import is_unhashable

_MOST_OBJECTS = 16  # that come once each, before calls with such are left alone


class Keys:
    """For a thread that holds the program's lock. `table`, `budget` and `pause` are the program's."""

    def __init__(self, name: str, table: EntryTable, budget: Budget, pause: Pause, *, may_free_numbers: bool) -> None:
        self._name = name
        self._table, self._budget, self._pause = table, budget, pause
        self._may_free_numbers = may_free_numbers
        self._strangers = Strangers()
        self._numbers = VaryingNumbers()
        self.state = StateNumbers(may_be_inputs=may_free_numbers)
        self._passing: set[Hashable] = set()  # keys by class, of calls with objects that do not come again
        # Classes of objects that count as what they hold: another one came in each call.
        self._opened: set[type] = set()
        self._has_told_of_strangers = False

    def find(self, call: Call) -> tuple[Key, Entry]:
        """The key of a call, and its entry: a new one is in no table yet. Raises `Refusal` for arguments that have no key."""
        key = make_key(call)
        if self._passing and (kind := key_by_class(key)) is not None and kind in self._passing:
            key = kind
        entry = self._table.get(key) or Entry({})
        return key, entry

    def admit(self, entry: Entry, key: Key, call: Call) -> bool:
        """Have a new entry in the table, if there is a place and the budget is for it. A key that is not admitted is told from
        the others, once."""
        kind = key_by_class(key)
        mark = hash(key if kind is None else kind)
        stranger = self._strangers.of(mark)
        has_place = self._has_place(stranger)
        # Keys of one class share a mark: how often this one came is not known.
        if has_place and self._budget.admits(entry, stranger.times + 1 if kind is None else 1):
            self._enter(entry, key, call)
            self._pause.paid_off()
            return True
        self._strangers.came(mark, self._table.uses)
        if not self._has_told_of_strangers:
            self._has_told_of_strangers = True
            calls = [*(other.arguments for other in self._table), arguments_text(call)]
            why, setting = (
                (f"recording each would take more than {settings.compile_budget:.0%} of the time", "compile_budget")
                if has_place
                else (f"there are more of them than {len(self._table)}", "max_recordings_per_program")
            )
            warn_once(
                f"treeplay runs calls of {self._name} as they are that no recording fits: what varies from call to call is "
                f"{varying(calls)}, and {why}. Keep it constant (pad shapes, pass numbers as tensors), or raise "
                f"treeplay.settings.{setting}."
            )
        return False

    def _has_place(self, stranger: Stranger) -> bool:
        """Whether a key may have an entry: there are few, or one was not used since the key came the last time. So keys that
        come in turn, more than are kept, do not drive each other out."""
        kept = max(len(self._table), self._table.recordings)
        is_full = kept >= settings.max_recordings_per_program and settings.compile_budget != math.inf
        return not is_full or self._table.oldest <= stranger.when

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """A call with these arguments, taken apart."""
        call = call_of(args, kwargs, self._opens, takes_arrays=self._may_free_numbers, ran=self.state.ran)
        return self.state.marked(self._numbers.marked(call))

    def varies(self, entry: Entry, key: Key, call: Call) -> bool:
        """Whether a new entry differs from another one only by what need not be part of a key, and no longer is."""
        return self._opens_more(entry, key, call) or self._frees_numbers(key, call)

    def _frees_numbers(self, key: Key, call: Call) -> bool:
        others = [(other, at) for other, at in self._table.items() if isinstance(other, Key)]
        if not self._may_free_numbers or not self._numbers.found(key, call, (other for other, _ in others)):
            return False
        self._forget([other for other, at in others if at.phase is KeyPhase.OBSERVED and not at.recordings])
        return True

    def fix_numbers(self, entry: Entry, call: Call, needed: Collection[Trail], where: Location | None) -> None:
        """Have numbers that were inputs be none from now on: those of the state that are `needed`. Where that is not known,
        those among the arguments, which are part of the key again; all of the state if there are none."""
        if needed or not call.numbers:
            self.state.fix(needed, where)
        if not needed:
            self._numbers.fix(call)
            self._forget([key for key, at in self._table.items() if at is entry])

    def _forget(self, keys: Iterable[Hashable]) -> None:
        self._budget.took_back(self._table.forget(keys))  # calls have other keys from now on

    def _opens(self, value: Any) -> bool:
        """Whether an object among the arguments counts as what it holds, and not as itself."""
        return type(value) in self._opened or is_unhashable(value)

    def _opens_more(self, entry: Entry, key: Key, call: Call) -> bool:
        """Whether a new entry differs only by objects that hold tensors from one whose objects came once: batches, it seems.

        From now on objects of their classes count as what they hold."""
        kind = key_by_class(key)
        if kind is None:
            return False
        others = [(other, at) for other, at in self._table.items() if at is not entry and isinstance(other, Key)]
        once = [other for other, at in others if at.phase is KeyPhase.OBSERVED and key_by_class(other) == kind]
        if not once:
            return False
        batches = {type(leaf) for leaf in call.leaves if may_open(leaf) and holds_tensors(leaf)}
        if not batches:
            return False
        self._opened |= batches
        self._forget([key, *once])
        return True

    def look_around(self, entry: Entry, key: Key, call: Call) -> None:
        """Note which mode keeps a new entry's calls eager."""
        mode = key.ambience.only_eagerly
        if mode is not None or has_fakes(call):
            entry.phase, entry.reason = KeyPhase.EAGER, under_mode(mode) if mode is not None else OF_FAKES
            self._enter(entry, key, call)

    def compare(self, entry: Entry, key: Key, call: Call) -> None:
        """Note what keeps a new entry's calls apart from the nearest that are recorded."""
        others = [(other, at) for other, at in self._table.items() if isinstance(other, Key) and at.recordings]
        differing = [
            key_mismatches(other.ambience, at.recordings[-1].signature, key.ambience, call) for other, at in others
        ]
        entry.differs = min(reversed(differing), key=len, default=())  # of two as near, the one used last
        for differs in entry.differs[:1]:
            log_event("guards", f"{self._name}: other arguments than in the calls that were recorded: {differs}")

    def comes_once(self, entry: Entry, key: Key, call: Call) -> bool:
        """Whether an object among the arguments has been another one in each of many calls, none of them twice.

        Then its calls share the new entry, from now on."""
        kind = key_by_class(key)
        most = min(_MOST_OBJECTS, settings.max_recordings_per_program)
        if kind is None or len(self._table) + self._strangers.of(hash(kind)).times < most:
            return False
        entries = self._table.items()
        if any(at.phase is not KeyPhase.OBSERVED or key_by_class(other) != kind for other, at in entries):  # type: ignore[arg-type]
            return False
        self._table.clear()
        self._strangers.clear()
        self._enter(entry, kind, call)
        self._passing.add(kind)
        return True

    def _enter(self, entry: Entry, key: Key, call: Call) -> None:
        entry.arguments = arguments_text(call)
        self._table.put(key, entry)
