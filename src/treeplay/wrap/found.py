"""What there is in a call, found the slow way: for telling what did not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from treeplay.torch_seam.patched import ABSENT
from treeplay.trace.call import Call
from treeplay.values.flatten import given_containers
from treeplay.values.place import How, Place
from treeplay.values.signature import Argument, Constant, GivenContainer, Signature, State
from treeplay.wrap.places import Operand


def found_at(of: Operand, call: Call) -> Any:
    """What an operand is in `call`."""
    match of:
        case Argument(index):
            return call.leaves[index]
        case State(place):
            return current(place, call)
        case Constant(value):
            return value
        case GivenContainer(name):
            return _container(name, call)
        case Place():
            return current(of, call)


def _container(name: str, call: Call) -> Any:
    found = given_containers(call.structure, call.args, call.kwargs)
    return next((value for variable, value, _ in found if variable == name), ABSENT)


def current_inputs(signature: Signature, call: Call) -> list[Any]:
    """What the graph's inputs stand for in `call`."""
    return [found_at(item.source, call) for item in signature.inputs]


def current(place: Place, call: Call) -> Any:
    """What is at `place` now, found again from its root; in `call`, where an argument leads to it."""
    try:
        if place.how is How.ARGUMENT:
            return _container(place.key, call) if isinstance(place.key, str) else call.leaves[place.key]
        is_of_argument = place.parent is not None and place.parent.how is How.ARGUMENT
        if place.parent is not None and (place.is_read_anew or is_of_argument):
            value = current(place.parent, call)
            return replace(place, holder=place.start_in(value) if place.is_read_anew else value).read()
        return place.read()
    except (KeyError, IndexError, AttributeError, ValueError, TypeError):
        return ABSENT
