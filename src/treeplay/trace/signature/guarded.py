"""From a traced run to its guards: where the walk over what it read begins, and what of it a warm call checks by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.guards.check.guards import Guards
from treeplay.guards.dependencies import Dependencies
from treeplay.guards.entries import hashed, spot_of
from treeplay.guards.facts import HasGradient
from treeplay.guards.outside import settings_asked
from treeplay.guards.reads.reads import Reads
from treeplay.guards.walk.reach import Findings, Reach
from treeplay.guards.walk.walk import TooMuch
from treeplay.torch_seam.modes import DisableTorchFunctionSubclass
from treeplay.torch_seam.tensors import has_strides
from treeplay.trace.call import Call, home_of, roots_of
from treeplay.trace.log import LoggedCall
from treeplay.trace.restore.caching import check_unfound
from treeplay.trace.signature.called import check_called
from treeplay.trace.signature.opened import within_slots
from treeplay.trace.signature.stores import check_unseen_stores
from treeplay.trace.signature.told_apart import identity_of
from treeplay.trace.survey.given import only_given
from treeplay.trace.traced import TracedRun
from treeplay.values.flatten import attributes_in
from treeplay.values.kinds import is_a, slots_of
from treeplay.values.output import Static
from treeplay.values.place import How, Place
from treeplay.values.same import components
from treeplay.values.signature import (
    Argument,
    Constant,
    Input,
    Kind,
    Number,
    Signature,
    State,
    StateContainer,
    Unread,
    Watch,
)
from treeplay.values.spec import TensorSpec


def guards_of(run: TracedRun, signature: Signature) -> tuple[Signature, Guards]:
    """The guards over what a traced run read, and the signature without what it did not; raises `Refusal` where that is too
    much to guard, or cannot be."""
    check_called(run.reads)
    findings, unread = _walked(run, also_assigned=signature.kind is Kind.DIFFERENTIABLE)
    check_unfound(run, findings.caching)
    check_unseen_stores(findings, run)
    _check_found(findings)
    dependencies, signature = findings.dependencies, _where_it_was_read(signature, findings)
    identity = identity_of(run, findings, signature.writes)
    places = [*(place for item in signature.inputs for place in item.places), *_places_of_numbers(run.numbers)]
    written = [write.place for write in signature.writes]
    dependencies.asked += settings_asked(run.reads.builtins)
    returned = [value.place for value in signature.values if isinstance(value, StateContainer)]
    # Before `free`, which looks at what this adds, too.
    dependencies.guard_the_way([*places, *written])
    dependencies.guard_the_way(returned, themselves=True)
    inputs = [*_state_in(signature)]
    dependencies.free(
        _spots(places),
        _spots(written),
        [number.place for number in run.numbers],
        within=within_slots(run, findings, written),
        inputs={*map(id, inputs), *map(id, run.call.tensors)},
        taken={*_objects_in([place.read_or(None) for place in returned]), *_objects_in(_kept(signature))},
    )
    for tensor in (*run.call.tensors, *inputs):
        # The warm call checks these itself.
        dependencies.tensors.pop(id(tensor), None)
    compared = _loosen(dependencies, run, signature)
    _add_gradients(dependencies, signature, run)
    guards = Guards(dependencies)
    guards.places_of_inputs = tuple(item.source.place for item in signature.inputs if isinstance(item.source, State))
    guards.unread_arguments = unread
    guards.compared_with_arguments = compared
    guards.identity = identity
    return signature, guards


def _where_it_was_read(signature: Signature, findings: Findings) -> Signature:
    """The signature without places of state where arguments are too and that the run did not come across: a list of past
    batches, which the caller keeps."""

    def is_met(place: Place) -> bool:
        return id(place.holder) in findings.met and id(place.holder) not in findings.left_out

    def read(item: Input) -> Input:
        if not isinstance(item.source, Argument) or all(map(is_met, item.source.also)):
            return item
        return replace(item, source=replace(item.source, also=tuple(filter(is_met, item.source.also))))

    meetings = (each for each in signature.meetings if isinstance(each.other, str) or is_met(each.other))
    return replace(signature, inputs=tuple(map(read, signature.inputs)), meetings=tuple(meetings))


def _kept(signature: Signature) -> list[Any]:
    """What a replay returns or stores as the very object that there was."""
    return [value.value for value in signature.values if isinstance(value, Static)]


def _objects_in(values: list[Any]) -> Iterator[int]:
    """The `id` of each of these, and of what is in the immutable ones among them."""
    for value in values:
        yield id(value)
        yield from _objects_in(components(value) or [])


def _loosen(dependencies: Dependencies, run: TracedRun, signature: Signature) -> dict[int, Place]:
    """Let others replace tensors of which the run read facts alone. Gives the places, by the tensors' `id`, of those that an
    argument could be, of whatever size: each call compares it with what is there."""
    given = {(leaf.dtype, leaf.device, len(leaf.shape)) for leaf in signature.leaves if is_a(leaf, TensorSpec)}
    constants = {id(item.source.tensor) for item in signature.inputs if isinstance(item.source, Constant)}
    compared = {}
    with DisableTorchFunctionSubclass():
        for guard, key, tensor in dependencies.replaceable(but=constants | run.grads_read.keys()):
            if not has_strides(tensor):
                continue
            spec = TensorSpec.of(tensor)
            if (spec.dtype, spec.device, len(spec.shape)) in given:
                spot = id(guard.holder), hashed(key)
                place = next((place for place in run.found.tensor_at(tensor) if spot_of(place) == spot), None)
                if place is None:
                    continue
                compared[id(tensor)] = place
            guard.of_facts.add(key)
    dependencies.guard_the_way(compared.values())
    return compared


def _walked(run: TracedRun, *, also_assigned: bool) -> tuple[Findings, frozenset[int]]:
    """What is reached from where the run began, and the leaves of the arguments that it did not read."""
    reach = Reach(run.reads, also_assigned=also_assigned)
    for container in only_given(run.found):
        reach.leave_out(container)
    unread = _unread(run.call, reach)
    try:
        with DisableTorchFunctionSubclass():  # a tensor's class is not asked what the tensor is
            given = [places[0].holder for places in run.found.given.values()]
            return reach.walk(roots_of(run.program, run.call, unread), given), unread
    except TooMuch:
        raise Refusal.of(
            "state",
            "the program reaches too many objects to guard them all, so a change of one could go unnoticed",
            "keep large collections of Python objects out of its closure, globals and `self`; pass what it needs",
        ) from None


def _unread(call: Call, reach: Reach) -> frozenset[int]:
    """Leaves of the arguments, by their index, that are in attributes which the run did not read."""
    attributes = attributes_in(call.structure, (call.args, call.kwargs))
    unread = (below for value, name, below in attributes if not reach.may_have_read(value, name))
    return frozenset(at for at in set().union(*unread) if not is_a(call.leaves[at], torch.Tensor))


def _add_gradients(dependencies: Dependencies, signature: Signature, run: TracedRun) -> None:
    """Guard gradients that were there and of which the run asked only that."""
    inputs = {id(tensor) for tensor in _state_in(signature)}
    for tensor in run.grads_read.values():
        places = run.found.tensor_at(tensor)
        is_given = bool(places) and places[0].how is How.ARGUMENT  # another one in each call: see trace/run/facts.py
        if tensor.grad is not None and id(tensor.grad) not in inputs and not is_given:
            label = f"{places[0] if places else 'a tensor'}.grad is there"
            dependencies.asked.append(HasGradient(tensor, label))


def _check_found(findings: Findings) -> None:
    for found, why, advice in (
        (
            findings.iterators,
            "can take items from; a recording would not",
            "take the item outside and pass it as an argument",
        ),
        (
            findings.large,
            "can read and anybody change in place, and too large to compare on each call",
            "make a tensor of it outside of the program, or pass what is needed of it",
        ),
    ):
        for value, label in found:
            raise Refusal.of(label, f"is a {type(value).__name__} that the program {why}", advice)


def attributes_of_arguments(run: TracedRun) -> Iterator[Watch]:
    """What users have put on tensors that are arguments, under names that code of the run uses."""
    names = run.reads.all_names()
    for index, leaf in enumerate(run.call.leaves):
        if not is_a(leaf, torch.Tensor):
            continue
        for name, _ in slots_of(leaf):
            if name in names:
                raise Refusal.of(
                    f"argument {index}",
                    f"is a {type(leaf).__name__}, whose class has the slot `{name}` that the program may read",
                    "leave `__slots__` out of the class, or pass what is there beside the tensor",
                    home_of(run.program),
                )
        for name, value in vars(leaf).items():
            if name in names:
                argument = Place(How.ARGUMENT, leaf, index, None, f"argument {index}")
                yield Watch(argument.child(How.ATTRIBUTE, leaf, name, f"{argument}.{name}"), value)


def called_in(log: Iterable[LoggedCall], reads: Reads) -> frozenset[str] | None:
    """Names of the operators and the builtin functions that a run called; None if they are not all known, or do not tell."""
    operators = {entry.op for entry in log}
    if reads.code is None or not all(name.startswith(("aten.", "prims.", "prim.", "result")) for name in operators):
        return None
    return frozenset(operators | reads.builtins.keys())


def with_guards(signature: Signature, guards: Guards, called: frozenset[str] | None) -> Signature:
    """A signature with its guards, the operators and builtins that were called, and the tensors that the run met, are no
    inputs, and look like an argument."""
    met, unread = met_of(guards, signature.leaves), guards.unread_arguments
    leaves = tuple(Unread() if at in unread else leaf for at, leaf in enumerate(signature.leaves))
    return replace(signature, leaves=leaves, guarded=guards, met=met, called=called, identity=guards.identity)


def met_of(guards: Guards, leaves: Iterable[Any]) -> tuple[tuple[Constant | State, TensorSpec], ...]:
    """The tensors of which facts are guarded, and that an argument could be, by the specs among `leaves`: each itself, or
    whichever is in its place."""
    arguments = {leaf for leaf in leaves if type(leaf) is TensorSpec}
    with DisableTorchFunctionSubclass():
        specs = [(tensor, TensorSpec.of(tensor)) for tensor in guards.tensors() if has_strides(tensor)]
    met = [(tensor, spec) for tensor, spec in specs if any(argument.takes(spec) for argument in arguments)]
    places = guards.compared_with_arguments
    return tuple(
        (State(places[id(tensor)]) if id(tensor) in places else Constant(tensor), spec) for tensor, spec in met
    )


def _spots(places: list[Place]) -> Iterator[tuple[int, Any]]:
    for place in places:
        spot = spot_of(place)
        if spot is not None:
            yield spot


def _places_of_numbers(numbers: Iterable[Number]) -> Iterator[Place]:
    """Numbers that stood as symbols in the run: whichever was used is an input, or in a guard of its own."""
    for number in numbers:
        yield number.place
        # Of a parameter group each number in the tuple is one.
        if number.place.parent is not None and isinstance(number.place.holder, tuple) and not number.is_exact:
            yield number.place.parent


def _state_in(signature: Signature) -> Iterator[Any]:
    """Tensors of state that are inputs, as they are now."""
    for item in signature.inputs:
        if isinstance(item.source, State):
            yield item.source.place.read_or(None)
