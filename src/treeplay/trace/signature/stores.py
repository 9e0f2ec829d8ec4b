"""Stores of a run: what it assigned to attributes, read before or not, and where no replay assigns it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from treeplay.errors import Refusal
from treeplay.guards.entries import entry_of, is_found_on
from treeplay.guards.reads.reads import ObjectReads
from treeplay.guards.walk.reach import Findings
from treeplay.torch_seam.flags import is_setting
from treeplay.torch_seam.patched import ABSENT
from treeplay.trace.traced import TracedRun
from treeplay.values.kinds import PLAIN, is_a, table_of
from treeplay.values.place import How, Place
from treeplay.values.signature import Number

_OF_AN_OBJECT = (
    "the program assigns this attribute of an object that treeplay reaches by no path that it could undo",
    "change it outside of the program, or keep the object in an attribute, a closure or a global",
)
_OF_A_MODULE = (
    "the program assigns this attribute of a module, and a replay assigns only what code names by a global that is the module",
    "change it outside of the program, or write it out (`import config; config.total = ...`)",
)
_OF_SETTINGS = (
    "the program changes this setting of torch's, which no replay does",
    "set it outside of the program, or inside of it by a `with` block of a patch (`with config.patch(...)`)",
)


def put_back_stores(run: TracedRun) -> None:
    """Undo what the run assigned to attributes of modules, and of objects that were there before, where nothing else does; they
    are noted in `run.unseen`. A module's attribute that is again what it was before counts as read: while it is that, a replay
    need not assign it."""
    known, kept = _places_known(run), {id(value) for value in run.found.kept}
    for key, noted in run.reads.objects.items():
        is_module = isinstance(noted.object, ModuleType)
        if key not in kept and not is_module:
            continue
        for name, before in noted.assigned.items():
            if known(noted.object, name):
                continue
            if entry_of(noted.object, name) is not before:
                _put_back(noted.object, name, before)
                run.unseen.append((noted.object, name))
            elif is_module and not is_setting(noted.object, name):
                if _is_for_each_call(noted, name, run):
                    noted.read.setdefault(name)
                else:
                    run.unseen.append((noted.object, name))


def check_unseen_stores(findings: Findings, run: TracedRun) -> None:
    """Refuse a program that changed an object which no replay changes, and undo it; or a module that no guard is about."""
    known = _places_known(run)
    changed = [(value, name, before) for value, name, before in findings.changed if not known(value, name)]
    for value, name, before in changed:
        _put_back(value, name, before)
    # A setting of torch's that is what it was before the run is put back by a patch that ends in each call, or is guarded.
    modules = [noted for noted in run.reads.objects.values() if isinstance(noted.object, ModuleType)]
    in_modules = [
        (noted.object, name)
        for noted in modules
        if id(noted.object) not in findings.met
        for name in noted.assigned
        if not known(noted.object, name) and not is_setting(noted.object, name)
    ]
    for value, name in (*run.unseen, *((value, name) for value, name, _ in changed), *in_modules):
        is_of_module = isinstance(value, ModuleType)
        owner = value.__name__ if is_of_module else type(value).__name__
        why, advice = _OF_SETTINGS if is_setting(value, name) else _OF_A_MODULE if is_of_module else _OF_AN_OBJECT
        raise Refusal.of(
            f"{owner}.{name}",
            why,
            advice,
            noted.stored_at.get(name) if (noted := run.reads.objects.get(id(value))) is not None else None,
        )


def _places_known(run: TracedRun) -> Callable[[Any, str], bool]:
    """Tells whether an attribute of an object is among the places that a trace puts back and a replay may assign."""
    cells = {(id(place.holder), place.key) for place, _ in run.found.cells}

    def is_known(value: Any, name: str) -> bool:
        if is_setting(value, name):
            return False
        table = table_of(value)
        return table is None or id(table) in run.found.containers or (id(table), name) in cells

    return is_known


def _is_for_each_call(noted: ObjectReads, name: str, run: TracedRun) -> bool:
    """Whether a module's attribute that is what it was is so after each call that finds it so: not what the program may have
    from somewhere else, which another call would put there anew. Of what the module's class computes, as torch does many of its
    settings, nothing is known."""
    before = noted.assigned[name]
    if before is ABSENT:
        return not is_found_on(type(noted.object), name)
    is_put_back = is_a(before, list) and name in noted.read and id(before) not in run.found.given
    return is_put_back or is_a(before, (*PLAIN, FunctionType, BuiltinFunctionType))


def _put_back(value: Any, name: str, before: Any) -> None:
    if is_setting(value, name):
        setattr(value, name, before) if before is not ABSENT else delattr(value, name)
        return
    table = vars(value)
    if before is ABSENT:
        table.pop(name, None)
    else:
        table[name] = before


def stores_unread(run: TracedRun) -> set[tuple[int, str]]:
    """Attributes that the run assigned before it read them, if it did: the dictionary that holds them, and the name."""
    return {
        (id(table), name)
        for noted in run.reads.objects.values()
        if isinstance(table := getattr(noted.object, "__dict__", None), dict)
        for name in noted.assigned
        if name not in noted.read
    }


def note_what_is_gone(run: TracedRun) -> None:
    """Attributes that were absent, and that the run assigned and took away again, count as read: what somebody has put there
    meanwhile, a replay would have to take away."""
    for noted in run.reads.objects.values():
        for name, before in noted.assigned.items():
            if before is ABSENT and entry_of(noted.object, name) is ABSENT:
                noted.read.setdefault(name)


def stores_of_the_same(run: TracedRun) -> Iterator[tuple[Place, Any]]:
    """Attributes that the run assigned, never read before, and that hold what they held: a replay assigns them too, for
    whoever has put something else there meanwhile."""
    for noted in run.reads.objects.values():
        table = getattr(noted.object, "__dict__", None)
        place = run.found.container_places.get(id(table))
        if place is None or not isinstance(table, dict):
            continue
        for name, before in noted.assigned.items():
            if name not in noted.read and name in table and table[name] is before:
                yield place.child(How.ITEM, table, name, f"{place}.{name}"), before
    holders = run.reads.objects | {id(table_of(noted.object)): noted for noted in run.reads.objects.values()}
    for place, before in run.found.cells:  # slots, which are in no dictionary, and globals of modules
        holder = holders.get(id(place.holder))
        is_stored = holder is not None and place.key in holder.assigned and place.key not in holder.read
        if is_stored and place.read_or(ABSENT) is before:
            yield place, before


def stores_over_stand_ins(run: TracedRun) -> Iterator[tuple[Place, Any]]:
    """Places in which a number stood as a symbol, and in which the run has put what was there before: a replay does so too."""
    held = [number.place for number in run.numbers if _is_there_again(number)]
    for place in dict.fromkeys(at.slot for at in held):
        yield place, place.read_or(ABSENT)


def _is_there_again(number: Number) -> bool:
    """Whether a number is where its symbol was: in the same container, not in one that the program put instead of it."""
    place = number.place
    if not number.is_exact:  # of a group, in the tuple of the day
        return place.anew().read_or(ABSENT) is number.value
    steps = place.in_tuples
    return place.slot.read_or(ABSENT) is (steps[0].holder if steps else number.value)
