"""The arguments of a call taken apart: lines that find each leaf where it was, and miss where a container is another."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from treeplay.errors import InternalError
from treeplay.values.flatten import container_base
from treeplay.values.same import is_same
from treeplay.values.signature import Signature
from treeplay.values.structure import DICTS, Leaf, Structure
from treeplay.wrap.conditions import Condition
from treeplay.wrap.of_signature import of_arguments
from treeplay.wrap.places import CallText


def take_arguments_apart(text: CallText, signature: Signature) -> None:
    """Lines for the arguments of a call, a pair of args and kwargs, with the conditions on their leaves."""
    if isinstance(signature.arguments, Leaf):
        raise InternalError("a call's arguments are a pair of args and kwargs, not a leaf")
    args, kwargs = signature.arguments.parts
    conditions = [*of_arguments(signature)]
    _take_apart(text, "args", args, conditions, is_known=True)
    _take_apart(text, "kwargs", kwargs, conditions, is_known=True)


def _take_apart(
    text: CallText,
    value: str,
    structure: Leaf | Structure,
    conditions: Sequence[Condition],
    *,
    is_known: bool = False,
) -> None:
    """Lines that take `value` apart as recorded; `is_known` where its class cannot differ."""
    if isinstance(structure, Leaf):
        text.leaves[structure.index] = value
        conditions[structure.index].write(text)
        return
    text.leaves[value] = value
    if not is_known:
        text.require(f"type({value}) is {text.constant(structure.cls)}")
    if structure.is_array:
        text.add(f"{value}_0 = {text.use('from_numpy', torch.from_numpy)}({value})")
        _take_apart(text, f"{value}_0", structure.parts[0], conditions)
        return
    if structure.rest is not None:
        _take_object_apart(text, value, structure, conditions)
        return
    count = len(structure.parts)
    if structure.cls is deque:
        text.require(f"{value}.maxlen {'is' if structure.most is None else '=='} {structure.most}")
    if (structure.cls in DICTS or structure.cls is set) and structure.keys:
        # In their order, which a program may follow, that of its own keywords too (`**options`).
        names, expected = f"tuple({value})", text.constant(structure.keys)
        if all(type(key) is str for key in structure.keys):
            text.require(f"{names} == {expected}")
        else:
            text.require(f"{text.use('is_same', is_same)}({names}, {expected})")
    elif not structure.is_named:
        text.require(f"len({value}) == {count}" if count else f"not {value}")
    for index, part in enumerate(structure.parts):
        variable = f"{value}_{index}"
        if structure.is_named:
            step = f"{value}.{structure.keys[index]}"
        elif structure.keys:
            step = f"{value}[{text.literal(structure.keys[index])}]"
        else:
            step = f"{value}[{index}]"
        text.add(f"{variable} = {step}")
        _take_apart(text, variable, part, conditions)


def _take_object_apart(text: CallText, value: str, structure: Structure, conditions: Sequence[Condition]) -> None:
    """Lines that take an object apart, by the methods of what it is made of."""
    base, count = container_base(structure.cls), len(structure.items)
    methods = text.constant(base)
    if issubclass(base, dict):
        found = f"tuple({methods}.__iter__({value}))"
        text.require(f"{text.use('is_same', is_same)}({found}, {text.constant(structure.keys)})")
    elif base in (list, tuple):
        text.require(f"{methods}.__len__({value}) == {count}")
    read = text.use("attribute_of", object.__getattribute__)
    keys = [text.literal(key) for key in structure.keys] or range(count)
    steps = [f"{methods}.__getitem__({value}, {key})" for key in keys]
    steps += [f"{read}({value}, {name!r})" for name in structure.rest or ()]
    for index, (step, part) in enumerate(zip(steps, structure.parts, strict=True)):
        text.add(f"{value}_{index} = {step}")
        _take_apart(text, f"{value}_{index}", part, conditions)
