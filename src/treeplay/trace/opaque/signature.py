"""From what an opaque program showed when it was run to a `Signature`: everything that it could have read is watched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from treeplay.errors import Refusal
from treeplay.trace.arguments_again import LikeArguments
from treeplay.trace.call import Call
from treeplay.trace.opaque.host_tensors import HostState
from treeplay.trace.shown import RunFacts
from treeplay.trace.signature.make import leaves_of_call, on_the_way, stays_true
from treeplay.trace.signature.result_keys import tensors_in_keys
from treeplay.trace.survey.found import Survey
from treeplay.trace.survey.given import meetings
from treeplay.trace.training.hooks import HookTables
from treeplay.values.flatten import given_containers
from treeplay.values.kinds import PLAIN
from treeplay.values.location import Location
from treeplay.values.output import SameAsInput, View
from treeplay.values.place import How, Place
from treeplay.values.signature import (
    Alias,
    Built,
    Input,
    Kind,
    Meeting,
    Signature,
    StateContainer,
    Watch,
    Write,
    values_in,
)
from treeplay.values.structure import classes_in, indices_in
from treeplay.values.which import getter_of

R = TypeVar("R")


class Arguments:
    """The arguments of a call without its tensors: others can be put in their places. What is in state too stays itself; raises
    `Refusal` for a container with tensors that is, in which none could be put."""

    def __init__(self, call: Call, found: Survey, home: Location | None) -> None:
        self.structure = call.structure
        self.leaves = leaves_of_call(call)
        self._like = LikeArguments(call, dict(_in_state(call, found, home)))
        self._classes = classes_in(call.structure)
        self._tensors = frozenset(at for at, leaf in enumerate(call.leaves) if isinstance(leaf, torch.Tensor))

    def over(self, tensors: Mapping[int, torch.Tensor]) -> tuple[Any, Any]:
        """args and kwargs with `tensors`, by the index of the leaf."""
        return self._like.over([self._leaf(at, tensors) for at in range(len(self.leaves))])

    def opens(self, value: Any) -> bool:
        """Whether an object among the arguments counts as what it holds."""
        return type(value) in self._classes

    def _leaf(self, at: int, tensors: Mapping[int, torch.Tensor]) -> Any:
        if at not in self._tensors:
            return self.leaves[at]
        recorded = self.leaves[at]
        return tensors[recorded.of if type(recorded) is Alias else at]


def _in_state(call: Call, found: Survey, home: Location | None) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The containers among the arguments that are in state too, each by its variable."""
    for name, container, part in given_containers(call.structure, call.args, call.kwargs):
        place = found.given[id(container)][-1]
        if place.how is How.ARGUMENT:
            continue
        if any(isinstance(call.leaves[at], torch.Tensor) for at in indices_in(part)):
            raise Refusal.of(
                str(found.given[id(container)][0]),
                f"has tensors in it and is also in the program's state ({place}): a program that is recorded as it runs gets "
                "others like it with other tensors, and could tell",
                "pass a copy of it, or let the program read it where it is",
                home,
            )
        yield name, getter_of(container)


def _told_apart(found: Survey) -> Iterator[Meeting]:
    """Which containers of the arguments are one with each other, and that they are not what is in state but where they were."""
    state = [(place.read_or(None), place) for place in {**found.container_places, **found.objects}.values()]
    firsts: list[Place] = []
    for places in found.given.values():
        first, *others = places
        yield from (Meeting(first.key, other.key, are_one=True) for other in others if other.how is How.ARGUMENT)
        if isinstance(first.holder, tuple):
            continue
        cls = type(first.holder)
        yield from (Meeting(first.key, other.key, are_one=False) for other in firsts if type(other.holder) is cls)
        firsts.append(first)
        for value, place in state:
            if type(value) is cls and value is not first.holder and place.how is not How.ARGUMENT:
                yield Meeting(first.key, place, are_one=False)


def renumbered(values: Sequence[R], kept: Sequence[int]) -> tuple[R, ...]:
    """References or writes when only the inputs `kept` are left."""
    return tuple(_renumbered(value, kept) for value in values)


def _renumbered(value: Any, kept: Sequence[int]) -> Any:
    if isinstance(value, SameAsInput):
        return SameAsInput(kept.index(value.index))
    if isinstance(value, View):
        return dataclasses.replace(value, of=_renumbered(value.of, kept))
    if isinstance(value, Write):
        return Write(value.place, _renumbered(value.value, kept))
    if isinstance(value, Built):
        return Built(value.structure, renumbered(value.refs, kept), value.number)
    return value


def opaque_signature(
    found: Survey, inputs: tuple[Input, ...], arguments: Arguments, shown: RunFacts, host: HostState, *, is_step: bool
) -> Signature:
    """Put together what a recording of an opaque program depends on, and what it leaves."""
    leaves = [tensor for tensor in _tensors(found) if tensor.requires_grad and tensor.is_leaf]
    hooks = HookTables(found.modules.values(), found.optimizers, leaves)
    watches = (
        stays_true(hooks, "are_the_same", "the hooks are the same"),
        *(Watch(place, value) for place, value in found.watched),
        *(Watch(place, generator) for place, generator in found.generator_places),
        *_settings_of_optimizers(found),
        *(_absent_grads(found, leaves) if is_step else ()),
        *([stays_true(host, "is_the_same", "tensors that the recording does not read")] if host.tensors else []),
    )
    places = [place for item in inputs for place in item.places]
    places += [watch.place.parent for watch in watches if watch.place.parent is not None]
    places += [found.objects[key] for key in found.modules if key in found.objects]
    places += [write.place.parent for write in shown.writes if write.place.parent is not None]
    places += [part.place for part in values_in(shown.refs, shown.writes) if isinstance(part, StateContainer)]
    identities, lengths = on_the_way(places, found, found.modules, leaves if is_step else ())
    identities += tuple(Watch(found.tensor_at(tensor)[0], tensor) for tensor in host.tensors)
    keys = tensors_in_keys((*shown.refs, *(write.value for write in shown.writes)), shown.results)
    identities += tuple(Watch(found.tensor_at(tensor)[0], tensor) for tensor in keys)
    return Signature(
        kind=Kind.WHOLE_STEP if is_step else Kind.INFERENCE,
        arguments=arguments.structure,
        leaves=arguments.leaves,
        inputs=inputs,
        numbers=(),
        guards=(),
        watches=watches,
        identities=identities,
        lengths=lengths,
        results=shown.results,
        refs=shown.refs,
        writes=shown.writes,
        outputs=len(shown.outputs),
        meetings=tuple(dict.fromkeys((*meetings(found, shown.refs, shown.writes), *_told_apart(found)))),
    )


def _tensors(found: Survey) -> Iterator[torch.Tensor]:
    return (item for item in found.kept if isinstance(item, torch.Tensor))


def _settings_of_optimizers(found: Survey) -> Iterator[Watch]:
    """All plain values of all groups: the learning rate too, which would freeze unless it is a tensor."""
    for optimizer in found.optimizers:
        for here, group in found.groups_of(optimizer):
            for name, value in group.items():
                is_tuple = type(value) is tuple and all(isinstance(item, PLAIN) for item in value)
                if isinstance(value, PLAIN) or is_tuple:
                    yield Watch(here.child(How.ITEM, group, name, f"{here}[{name!r}]"), value)


def _absent_grads(found: Survey, leaves: Sequence[torch.Tensor]) -> Iterator[Watch]:
    """Leaves without a gradient: with one, a backward would add to it."""
    for tensor in leaves:
        place = found.tensor_at(tensor)[0]
        if tensor.grad is None:
            yield Watch(place.grad_of(tensor), None)
