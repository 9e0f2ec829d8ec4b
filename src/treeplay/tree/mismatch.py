"""Finds why a recording did not fit a call: the conditions of its call function again, slowly and with names.

Runs only after a miss, so that the warm call carries no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from treeplay.trace.call import Call
from treeplay.trace.hooks import HookTables
from treeplay.trace.scalars import is_float
from treeplay.tree.inputs import current_inputs
from treeplay.tree.key import shown
from treeplay.values.mismatch import Mismatch
from treeplay.values.overlap import overlapping
from treeplay.values.place import How, Place
from treeplay.values.same import is_same
from treeplay.values.signature import Alias, Argument, Constant, Input, Signature, State
from treeplay.values.spec import TensorSpec
from treeplay.values.structure import containers, paths
from treeplay.wrap.ambience import Ambience


def first_mismatch(signature: Signature, call: Call) -> Mismatch | None:
    """The first condition that does not hold, or None if none of those that can be named is broken."""
    return next(_mismatches(signature, call), None)


def nearest_mismatches(signatures: Sequence[Signature], call: Call) -> list[Mismatch]:
    """All that keeps a call from the recording that it is nearest to, each place once; of two as near, the newest."""
    found = [_each_place_once(_mismatches(signature, call)) for signature in signatures]
    return min(reversed(found), key=len, default=[])


def memory_mismatch(signature: Signature, shared: Sequence[tuple[int, int]], call: Call) -> Mismatch | None:
    """The first two tensors of which one is written, and that share memory though they did not, or the other way round."""
    now = overlapping(current_inputs(signature, call), signature.mutated)
    changed = next(iter(set(now) ^ set(shared)), None)
    if changed is None:
        return None
    told = {True: "shared memory", False: "memory of their own"}
    first, second = (shown(signature.inputs[at].name) for at in changed)
    return Mismatch(f"{first} and {second}", told[changed in shared], told[changed in now])


def key_mismatches(recorded: Ambience, signature: Signature, now: Ambience, call: Call) -> tuple[Mismatch, ...]:
    """What makes the key of a call another one than that of a recording: modes and arguments."""
    return (*_modes(recorded, now), *_arguments(signature, call))


def _each_place_once(found: Iterable[Mismatch]) -> list[Mismatch]:
    """One change may show in several conditions: the first that names a place tells of it, and of what is inside."""
    told: list[Mismatch] = []
    for mismatch in found:
        if not any(mismatch.is_about(other) for other in told):
            told.append(mismatch)
    return told


def _mismatches(signature: Signature, call: Call) -> Iterator[Mismatch]:
    yield from _arguments(signature, call)
    changed = signature.guarded.first_difference() if signature.guarded is not None else None
    if changed is not None:
        yield changed
    for watch in signature.identities:
        if watch.place.how not in (How.ROOT, How.ARGUMENT) and current(watch.place) is not watch.value:
            yield Mismatch(str(watch.place), f"this {type(watch.value).__name__}", "another object")
    for watch in signature.lengths:
        found = current(watch.place)
        if not hasattr(found, "__len__") or len(found) != watch.value:
            yield Mismatch(f"length of {watch.place}", str(watch.value), _shown_length(found))
    yield from _state(signature, call)
    yield from _leaves(signature, call)
    for watch in signature.watches:
        found = current(watch.place)
        hooks = watch.place.holder
        if isinstance(hooks, HookTables):
            difference = hooks.difference()
            if difference is not None:
                yield difference
        elif not is_same(found, watch.value):
            yield Mismatch(str(watch.place), repr(watch.value), _shown(found))
    yield from _numbers(signature)


def mode_mismatch(recorded: Ambience, now: Ambience) -> Mismatch | None:
    """The first mode around the call that is another one, or None."""
    return next(_modes(recorded, now), None)


def _modes(recorded: Ambience, now: Ambience) -> Iterator[Mismatch]:
    for what, then, found in recorded.differences(now):
        yield Mismatch(what, _shown(then), _shown(found))


def _arguments(signature: Signature, call: Call) -> Iterator[Mismatch]:
    if call.structure != signature.arguments:
        yield Mismatch("arguments", "the containers and keys of the first call", "another structure")
        return
    names = paths(call.structure)
    for path, leaf, recorded in zip(names, call.leaves, signature.leaves, strict=True):
        if type(recorded) is Alias:
            if leaf is not call.leaves[recorded.of]:
                yield Mismatch(shown(path), f"the tensor of {shown(names[recorded.of])} again", "another tensor")
        elif type(recorded) is TensorSpec:
            if not isinstance(leaf, torch.Tensor):
                yield Mismatch(shown(path), str(recorded), type(leaf).__name__)
            elif TensorSpec.of(leaf) != recorded:
                yield Mismatch(shown(path), str(recorded), f"{TensorSpec.of(leaf)} ({_difference(leaf, recorded)})")
        elif not is_same(leaf, recorded):
            yield Mismatch(shown(path), _shown(recorded), _shown(leaf))
    given = dict(containers(call.args, call.kwargs))
    for meeting in signature.meetings:
        is_named = isinstance(meeting.other, str)
        other = given.get(str(meeting.other)) if is_named else current(meeting.other)  # type: ignore[arg-type]
        if (given.get(meeting.name) is other) is not meeting.are_one:
            kinds = {True: "one container", False: "two containers"}
            yield Mismatch(f"{meeting.name} and {meeting.other}", kinds[meeting.are_one], kinds[not meeting.are_one])


def _difference(tensor: torch.Tensor, recorded: TensorSpec) -> str:
    return TensorSpec.of(tensor).difference(recorded)


def _elsewhere(item: Input, tensor: Any) -> Iterator[Mismatch]:
    """Other places that must hold the tensor of an input."""
    places = () if isinstance(item.source, Constant) else item.source.also
    for place in places:
        if current(place) is not tensor:
            yield Mismatch(str(place), f"the same tensor as {item.name}", "another object")


def _state(signature: Signature, call: Call) -> Iterator[Mismatch]:
    for item in signature.inputs:
        if isinstance(item.source, Argument):
            yield from _elsewhere(item, call.leaves[item.source.index])
        if not isinstance(item.source, State):
            continue
        tensor = current(item.source.place)
        if not isinstance(tensor, torch.Tensor):
            yield Mismatch(item.name, str(item.spec), _shown(tensor))
        elif TensorSpec.of(tensor) != item.spec:
            yield Mismatch(item.name, str(item.spec), f"{TensorSpec.of(tensor)} ({_difference(tensor, item.spec)})")
        else:  # that another tensor is not in the other places of this one is no second change
            yield from _elsewhere(item, tensor)


def _leaves(signature: Signature, call: Call) -> Iterator[Mismatch]:
    """Tensors that were leaves of autograd and are results of something now, or the other way round; and those that begin
    elsewhere in their memory, where that counts."""
    named = {True: "a leaf of autograd", False: "the result of something differentiable"}
    for item in signature.inputs:
        source = item.source
        if isinstance(source, Constant) or (item.is_leaf is None and item.begins is None):
            continue
        tensor = call.leaves[source.index] if isinstance(source, Argument) else current(source.place)
        if not isinstance(tensor, torch.Tensor):
            continue
        if item.is_leaf is not None and tensor.is_leaf is not item.is_leaf:
            yield Mismatch(item.name, named[item.is_leaf], named[tensor.is_leaf])
        if item.begins is not None and tensor.storage_offset() != item.begins:
            yield Mismatch(f"storage offset of {item.name}", str(item.begins), str(tensor.storage_offset()))


def _numbers(signature: Signature) -> Iterator[Mismatch]:
    values: dict[str, Any] = {}
    for number in signature.numbers:
        values[number.name] = found = current(number.place)
        if not is_float(found):
            yield Mismatch(str(number.place), "a float", _shown(found))
            return
    for guard in signature.guards:
        found = eval(guard.expression, {"abs": abs}, values)
        if found != guard.expected:
            names = ", ".join(str(number.place) for number in signature.numbers if number.name in guard.expression)
            yield Mismatch(names, f"a value for which {guard}", _shown(found))


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def current(place: Place) -> Any:
    """What is at `place` now, found again from its root."""
    try:
        if place.is_read_anew and place.parent is not None:
            owner = current(place.parent)
            match place.how:
                case How.ITEM:
                    if isinstance(owner, dict) and place.key not in owner:
                        return _NOTHING  # a defaultdict would make an entry
                    return owner[place.key]
                case How.GRAD:
                    return owner.grad
                case _:
                    return getattr(owner, str(place.key))
        return place.read()
    except (KeyError, IndexError, AttributeError, ValueError, TypeError):
        return _NOTHING


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, torch.Tensor) else str(TensorSpec.of(value))
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def _shown_length(value: Any) -> str:
    return str(len(value)) if hasattr(value, "__len__") else _shown(value)


__all__ = ["current", "first_mismatch", "key_mismatches", "memory_mismatch", "mode_mismatch", "nearest_mismatches"]
