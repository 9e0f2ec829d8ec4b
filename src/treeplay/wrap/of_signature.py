"""Which conditions a signature puts on a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from treeplay.trace.call import Call
from treeplay.trace.survey.given import label_of_given
from treeplay.values.place import How, Place
from treeplay.values.signature import (
    Alias,
    Argument,
    Constant,
    GivenContainer,
    Input,
    Signature,
    State,
    Unread,
)
from treeplay.values.spec import TensorSpec
from treeplay.values.structure import as_written, paths
from treeplay.wrap.conditions import (
    Anything,
    AreDistinct,
    AreInSlot,
    AreOne,
    Begins,
    Condition,
    Fits,
    GuardsHold,
    HasFact,
    HasLength,
    IsItself,
    IsLeaf,
    IsStranger,
    IsValue,
)
from treeplay.wrap.conditions_on_numbers import Branches, IsNumber, SizesAre
from treeplay.wrap.places import Operand


def of_arguments(signature: Signature) -> Iterator[Condition]:
    """A condition for each leaf of the arguments, in order."""
    names, classes = [as_written(path) for path in paths(signature.arguments)], iter(signature.classes)
    for at, (name, recorded) in enumerate(zip(names, signature.leaves, strict=True)):
        if type(recorded) is Unread:
            yield Anything()
        elif type(recorded) is Alias:
            told = f"the tensor of {names[recorded.of]} again", "another tensor"
            yield AreOne(Argument(at), Argument(recorded.of), name, told)
        elif type(recorded) is TensorSpec:
            yield Fits(Argument(at), name, recorded, next(classes, None))
        else:
            yield IsValue(Argument(at), name, recorded)


def of_state(signature: Signature) -> Iterator[Condition]:
    """Conditions on what the program reaches, and on which objects are one."""
    if signature.guarded is not None:
        yield GuardsHold(signature.guarded)
    for watch in signature.identities:
        if watch.place.how not in (How.ROOT, How.ARGUMENT):
            told = f"this {type(watch.value).__name__}", "another object"
            yield AreOne(watch.place, Constant(watch.value), str(watch.place), told)
    for watch in signature.lengths:
        yield HasLength(watch.place, watch.value)
    classes = iter(signature.classes[sum(type(leaf) is TensorSpec for leaf in signature.leaves) :])
    for item in signature.inputs:
        if isinstance(item.source, State):
            yield Fits(item.source, item.name, item.spec, next(classes, None))
        yield from of_places(item)
    for watch in signature.watches:
        yield IsValue(watch.place, str(watch.place), watch.value)
    yield from _distinct(signature)
    yield from of_meetings(signature)
    yield from of_identity(signature)


def checked_tensors(signature: Signature, call: Call, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of `call` that `Fits` is about, in the order in which the native check takes them."""
    state = (tensor for item, tensor in zip(signature.inputs, inputs, strict=True) if isinstance(item.source, State))
    return [*call.tensors, *state]


def with_classes(signature: Signature, call: Call, inputs: Sequence[torch.Tensor]) -> Signature:
    """The signature with the classes of the tensors of the call that is recorded."""
    return replace(signature, classes=tuple(map(type, checked_tensors(signature, call, inputs))))


def of_tensors(signature: Signature) -> Iterator[Condition]:
    """Conditions on tensors that are known to fit."""
    for item in signature.inputs:
        if item.is_leaf is not None:
            yield IsLeaf(item.source, item.name, item.is_leaf)
        if item.begins is not None:
            yield Begins(item.source, item.name, item.begins)
    if signature.facts:
        arguments = (Argument(at) for at, leaf in enumerate(signature.leaves) if type(leaf) is TensorSpec)
        state = (item.source for item in signature.inputs if isinstance(item.source, State))
        checked: tuple[Operand, ...] = (*arguments, *state)
        for fact in signature.facts:
            yield HasFact(fact.source, fact.label, fact.name, fact.answer, checked)
    if signature.sizes is not None:
        yield SizesAre(signature.sizes, signature.inputs)


def of_numbers(signature: Signature) -> Iterator[Condition]:
    """Conditions on the numbers that are inputs, all of which come before the comparisons of them."""
    for number in signature.numbers:
        yield IsNumber(number)
    for guard in signature.guards:
        yield Branches(guard, signature.numbers)


def of_places(item: Input) -> Iterator[AreOne]:
    """Other places that must hold the tensor of an input."""
    for place in () if isinstance(item.source, Constant) else item.source.also:
        yield AreOne(place, item.source, str(place), (f"the same tensor as {item.name}", "another object"))


def of_meetings(signature: Signature) -> Iterator[AreOne]:
    """Which containers are one."""
    kinds = {True: "one container", False: "two containers"}
    for meeting in signature.meetings:
        other: GivenContainer | Place
        if isinstance(meeting.other, str):
            other, name = GivenContainer(meeting.other), label_of_given(meeting.other)
        else:
            other, name = meeting.other, str(meeting.other)
        told = kinds[meeting.are_one], kinds[not meeting.are_one]
        names = f"{label_of_given(meeting.name)} and {name}"
        yield AreOne(GivenContainer(meeting.name), other, names, told, meeting.are_one)


def of_identity(signature: Signature) -> Iterator[Condition]:
    """Which objects the containers among the arguments may be."""
    identity = signature.identity
    for name, original in identity.themselves:
        yield IsItself(GivenContainer(name), name, original)
    for name, met in identity.strangers:
        yield IsStranger(GivenContainer(name), name, met)
    for first, *others in identity.distinct:
        yield AreDistinct(GivenContainer(first), tuple(map(GivenContainer, others)))
    for place, (first, *others), which in identity.slots:
        yield AreInSlot(GivenContainer(first), tuple(map(GivenContainer, others)), place, which)


def _distinct(signature: Signature) -> Iterator[AreOne]:
    """Arguments that could be one tensor with another, by their specs, are no more so than they were."""
    names = [as_written(path) for path in paths(signature.arguments)]
    own: list[tuple[str, Operand, TensorSpec]] = [
        (names[at], Argument(at), leaf) for at, leaf in enumerate(signature.leaves) if type(leaf) is TensorSpec
    ]
    others: list[tuple[str, Operand, TensorSpec]] = [
        (item.name, item.source, item.spec) for item in signature.inputs if not isinstance(item.source, Argument)
    ]
    others += [("a tensor that the program reads", met, spec) for met, spec in signature.met]
    for at, (name, one, spec) in enumerate(own):
        for other_name, other, also in (*own[:at], *others):
            if spec.takes(also) or also.takes(spec):
                yield AreOne(one, other, name, ("another tensor", f"the tensor of {other_name}"), are_one=False)
