"""The entries of dictionaries as the code of a warm call, where the version of one does not tell enough."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from treeplay.codegen import Writer
from treeplay.guards.alike import check_of_plain
from treeplay.guards.containers import Table
from treeplay.torch_seam.dynamo import version_of_table
from treeplay.torch_seam.patched import ABSENT
from treeplay.values.kinds import PLAIN, PLAIN_DICTS, builtin_of, is_a


def entry_conditions(text: Writer, guard: Table) -> Iterator[str]:
    """A dictionary whose version keeps changing, by its guarded entries, but for those that are `filled`."""
    holder, recorded = text.constant(guard.holder), guard.recorded
    if guard.matters is not None or guard.may_grow or type(guard.holder) not in PLAIN_DICTS:
        # A class's entries are chosen by name, and a subclass may do anything in `[]`.
        yield f"{text.constant(_SameEntries(guard, recorded))}()"
        return
    if guard.names is None:
        yield f"len({holder}) == {len(recorded)}"
    if guard.names is None and not guard.is_unordered:
        yield all_are(text, holder, list(recorded))
    for key, value in recorded.items():
        constant = _key(text, key)
        if key in guard.filled:
            continue
        if value is ABSENT:
            yield f"{constant} not in {holder}"
        elif key in guard.free:  # a number that the program counts is another object after each replay
            if guard.names is None:
                yield f"{constant} in {holder}"
        elif key in guard.written and not is_a(value, PLAIN):
            if not guard.slots[key].may_be_shared:
                yield f"{text.constant(guard.slots[key].fits)}({holder}[{constant}])"
            elif guard.names is not None:
                yield f"{constant} in {holder}"
        else:
            yield f"{holder}[{constant}] is {text.constant(value)}"


def filled(text: Writer, guard: Table) -> Iterator[str]:
    """Tensors that took the place of others in a dictionary: its version does not tell what users put on them since."""
    ask = text.constant(builtin_of(guard.holder).__getitem__) if guard.filled else ""
    for key in guard.filled:
        found = f"{ask}({text.constant(guard.holder)}, {_key(text, key)})"
        yield f"{text.constant(check_of_plain(guard.recorded[key]))}({found})"


def _key(text: Writer, key: Any) -> str:
    return repr(key) if type(key) in (str, int) else text.constant(key)


class _SameEntries:
    """Whether a dictionary has the entries that were recorded, but for those that others fill. They are compared if it was
    written to."""

    __slots__ = ("_compared", "_guard", "_recorded")

    def __init__(self, guard: Table, recorded: dict[Any, Any]) -> None:
        self._guard = guard
        self._recorded = recorded
        self._compared: tuple[int, int] | None = None  # its version and length, when they were the same

    def __call__(self) -> bool:
        holder = self._guard.holder
        # Asked for before the entries are: what another thread writes meanwhile is compared again.
        now = (version_of_table(holder), dict.__len__(holder))
        if now == self._compared:
            return True
        found = self._guard.content(holder)
        found.update((key, self._recorded[key]) for key in self._guard.filled & found.keys())
        if not _are_the_same(found, self._recorded):
            return False
        self._compared = now
        return True


def _are_the_same(found: dict[Any, Any], recorded: dict[Any, Any]) -> bool:
    """Whether two dictionaries have the very same keys and values, in one order: for `==`, True and 1 would be the same."""
    is_ = operator.is_
    return (
        len(found) == len(recorded)
        and all(map(is_, found, recorded))
        and all(map(is_, found.values(), recorded.values()))
    )


def all_are(text: Writer, found: str, recorded: list[Any]) -> str:
    """The condition that what is found is, one by one, the very objects that were recorded."""
    return f"all(map({text.constant(operator.is_)}, {found}, {text.constant(recorded)}))"
