"""The containers among a call's arguments: a trace puts them back, and a replay writes to, stores and returns its own call's.

found.given     each container by its `id`: the variables that a call function has it in
`meetings`      what must hold so that the containers of another call are told apart as those of this one
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from treeplay.trace.survey.found import Survey
from treeplay.values.flatten import given_containers
from treeplay.values.kinds import is_a, is_frozen, module_of
from treeplay.values.place import How, Place
from treeplay.values.signature import GivenContainer, Meeting, Ref, Write, values_in
from treeplay.values.structure import Leaf, Structure


def find_given(found: Survey, args: tuple[Any, ...], kwargs: dict[str, Any], structure: Leaf | Structure) -> None:
    """Add the containers of the arguments, which have this structure, to what was found."""
    in_state = {**found.container_places, **found.objects}
    for name, container, of in given_containers(structure, args, kwargs):
        place = Place(How.ARGUMENT, container, name, None, label_of_given(name))
        places = found.given.setdefault(id(container), [])
        places.append(place)
        if len(places) > 1:
            continue
        if id(container) in in_state:  # the survey has found what it holds
            continue
        if of.rest is not None:
            found.kept.append(container)  # so that reads of its attributes are seen
            # Its `__dict__`, which comes first, is a container of its own: only slots are cells.
            for slot in of.rest if "__dict__" not in of.rest else of.rest[1:]:
                child = place.child(How.ATTRIBUTE, container, slot, f"{place}.{slot}")
                found.cells.append((child, child.read()))
        is_usual = module_of(type(container)) in ("builtins", "collections") or of.rest is not None
        if isinstance(container, (dict, list, deque, set)) and is_usual:
            found.containers[id(container)] = container
            found.container_places[id(container)] = place
        elif of.rest is not None:
            continue
        elif dataclasses.is_dataclass(container) and not is_frozen(container):
            for field in dataclasses.fields(container):
                child = place.child(How.ATTRIBUTE, container, field.name, f"{place}.{field.name}")
                found.cells.append((child, child.read()))
    for key, places in found.given.items():
        state = in_state.get(key)
        if state is not None and state.read_or(None) is places[0].holder:
            places.append(state)


def only_given(found: Survey) -> Iterator[Any]:
    """The containers that are among the arguments and not in state too."""
    for key, places in found.given.items():
        if places[-1].how is How.ARGUMENT and key not in found.objects:
            yield places[0].holder


def over(found: Survey, args: tuple[Any, ...], kwargs: dict[str, Any], structure: Leaf | Structure) -> Survey:
    """What was found, with other arguments in the place of those it was found with."""
    kept = {key for key, place in found.container_places.items() if place.how is not How.ARGUMENT}
    other = dataclasses.replace(
        found,
        containers={key: value for key, value in found.containers.items() if key in kept},
        container_places={key: place for key, place in found.container_places.items() if key in kept},
        cells=[(place, value) for place, value in found.cells if given_name(place) is None],
        given={},
        kept=[*found.kept],  # a copy: `find_given` adds to it
    )
    find_given(other, args, kwargs, structure)
    return other


def given_name(place: Place) -> str | None:
    """The variable of the argument in which `place` is, if it is in one."""
    parent = place.parent
    is_given = parent is not None and parent.how is How.ARGUMENT and isinstance(parent.key, str)
    return parent.key if parent is not None and is_given else None


def meetings(found: Survey, refs: Iterable[Ref], writes: Iterable[Write]) -> Iterator[Meeting]:
    """Which containers of a call have to be one, with each other and with state, as in this call, and which two."""
    writes = list(writes)
    used = {value.name for value in values_in(refs, writes) if isinstance(value, GivenContainer)}
    used |= {name for write in writes if (name := given_name(write.place)) is not None}
    known: set[tuple[str, str]] = set()
    for places in found.given.values():
        first = places[0]
        for place in places[1:]:
            if place.how is not How.ARGUMENT:
                yield Meeting(first.key, place, are_one=True)
            elif used or not is_a(first.holder, tuple):  # a program tells one from two; but a tuple is what it holds
                if not _follows(first.key, place.key, known):
                    yield Meeting(first.key, place.key, are_one=True)
                known.add((first.key, place.key))
        for others in found.given.values():
            other = others[0]
            if first.key in used and other is not first and type(other.holder) is type(first.holder):
                yield Meeting(first.key, other.key, are_one=False)


def _follows(one: str, other: str, known: Collection[tuple[str, str]]) -> bool:
    """Whether two containers are one because those that they are in are, as is known, and they are at the same place there."""
    around, _, at = one.rpartition("_")
    around_other, _, at_other = other.rpartition("_")
    return at == at_other and (around, around_other) in known


def label_of_given(name: str) -> str:
    """What a container of the arguments is called, by its variable: `args[0][1]`."""
    start, *steps = name.split("_")
    return start + "".join(f"[{step}]" for step in steps)
