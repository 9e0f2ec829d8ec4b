"""The arguments of a call taken apart: lines that find each leaf where it was, and miss where a container is another."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from treeplay.errors import InternalError
from treeplay.values.flatten import base_of
from treeplay.values.same import is_same
from treeplay.values.signature import Signature
from treeplay.values.structure import DICTS, Leaf, Structure
from treeplay.wrap.of_signature import of_arguments
from treeplay.wrap.results import ResultText


class ArgumentText(ResultText):
    """A writer that takes arguments apart, with the conditions on their leaves."""

    def __init__(self, signature: Signature, **names: Any) -> None:
        super().__init__(**names)
        self.of_leaves = [*of_arguments(signature)]

    def arguments(self, structure: Leaf | Structure) -> None:
        """Lines for the arguments of a call, a pair of args and kwargs."""
        if isinstance(structure, Leaf):
            raise InternalError("a call's arguments are a pair of args and kwargs, not a leaf")
        args, kwargs = structure.parts
        self.take_apart("args", args, is_known=True)
        self.take_apart("kwargs", kwargs, is_known=True)

    def take_apart(self, value: str, structure: Leaf | Structure, *, is_known: bool = False) -> None:
        """Lines that take `value` apart as recorded; `is_known` where its class cannot differ."""
        if isinstance(structure, Leaf):
            self.leaves[structure.index] = value
            self.of_leaves[structure.index].write(self)
            return
        self.leaves[value] = value
        if not is_known:
            self.require(f"type({value}) is {self.constant(structure.cls)}")
        if structure.is_array:
            self.add(f"{value}_0 = {self.use('from_numpy', torch.from_numpy)}({value})")
            self.take_apart(f"{value}_0", structure.parts[0])
            return
        if structure.rest is not None:
            self.take_object_apart(value, structure)
            return
        count = len(structure.parts)
        if structure.cls is deque:
            self.require(f"{value}.maxlen {'is' if structure.most is None else '=='} {structure.most}")
        if (structure.cls in DICTS or structure.cls is set) and structure.keys:
            # In their order, which a program may follow, that of its own keywords too (`**options`).
            names, expected = f"tuple({value})", self.constant(structure.keys)
            if all(type(key) is str for key in structure.keys):
                self.require(f"{names} == {expected}")
            else:
                self.require(f"{self.use('is_same', is_same)}({names}, {expected})")
        elif not structure.is_named:
            self.require(f"len({value}) == {count}" if count else f"not {value}")
        for index, part in enumerate(structure.parts):
            variable = f"{value}_{index}"
            if structure.is_named:
                step = f"{value}.{structure.keys[index]}"
            elif structure.keys:
                step = f"{value}[{self.literal(structure.keys[index])}]"
            else:
                step = f"{value}[{index}]"
            self.add(f"{variable} = {step}")
            self.take_apart(variable, part)

    def take_object_apart(self, value: str, structure: Structure) -> None:
        """Lines that take an object apart, by the methods of what it is made of."""
        base, count = base_of(structure.cls), len(structure.items)
        text = self.constant(base)
        if issubclass(base, dict):
            found = f"tuple({text}.__iter__({value}))"
            self.require(f"{self.use('is_same', is_same)}({found}, {self.constant(structure.keys)})")
        elif base in (list, tuple):
            self.require(f"{text}.__len__({value}) == {count}")
        read = self.use("attribute_of", object.__getattribute__)
        keys = [self.literal(key) for key in structure.keys] or range(count)
        steps = [f"{text}.__getitem__({value}, {key})" for key in keys]
        steps += [f"{read}({value}, {name!r})" for name in structure.rest or ()]
        for index, (step, part) in enumerate(zip(steps, structure.parts, strict=True)):
            self.add(f"{value}_{index} = {step}")
            self.take_apart(f"{value}_{index}", part)
