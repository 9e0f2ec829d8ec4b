"""The line of a program that changed what is in a place.

Of an attribute that was assigned it is known: the store was noted. A container is changed by no attribute's store, so its line
is looked for in the code that ran: one that names the container and changes something.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType

from treeplay.guards.reads.names import steps_by_line
from treeplay.guards.reads.reads import Reads
from treeplay.observe.lines import is_user_file, is_users
from treeplay.trace.restore.whose import CHANGES, STORES_OF_ITEMS, WRITES
from treeplay.values.kinds import table_of
from treeplay.values.location import Location
from treeplay.values.place import How, Place

_STORES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_NAME", "STORE_DEREF", "DELETE_ATTR", "DELETE_GLOBAL", "DELETE_DEREF")
_CHANGES = CHANGES | WRITES


def line_of_change(place: Place, reads: Reads) -> Location | None:
    """Where the run changed what is in `place`, as far as can be told; None if nothing in the user's code names it."""
    noted = {id(table_of(noted.object)): noted for noted in reads.objects.values()} | reads.objects
    holder = noted.get(id(place.holder))
    if holder is not None and place.key in holder.assigned:
        where = holder.stored_at.get(place.key)
        if where is not None:
            return where
    code = [one for one in reads.ran if is_users(one.co_filename)]
    code = [one for one in code if is_user_file(one.co_filename)] or code
    names = list(_names(place))
    for at, name in enumerate(names):
        for one in code:
            for line in _lines_that_change(one, name, is_rebound=at == 0 and name == _name(place)):
                return Location(one.co_filename, line, one.co_name)
    for one in code:
        for line in _lines_with(one, names[0]) if names else ():
            return Location(one.co_filename, line, one.co_name)
    return None


def _names(place: Place) -> Iterator[str]:
    """What code calls the place, or what it is in: the innermost first."""
    step: Place | None = place
    while step is not None:
        name = _name(step)
        if name is not None:
            yield name
        step = step.parent


def _name(step: Place) -> str | None:
    if step.how is How.CELL:
        return step.label
    if step.how is How.GRAD:
        return "grad"
    return step.key if isinstance(step.key, str) and step.how is not How.ROOT else None


def _lines_that_change(code: CodeType, name: str, *, is_rebound: bool) -> Iterator[int]:
    """The lines that assign `name` (`is_rebound`), or that change something and name it."""
    for line, steps in steps_by_line(code).items():
        named = [step for step in steps if step.argval == name]
        is_assigned = is_rebound and any(step.opname in _STORES for step in named)
        if is_assigned or (named and any(step.opname in STORES_OF_ITEMS or step.argval in _CHANGES for step in steps)):
            yield line


def _lines_with(code: CodeType, name: str) -> Iterator[int]:
    return (line for line, steps in steps_by_line(code).items() if any(step.argval == name for step in steps))
