"""The conditions of a call on numbers: on those that are inputs, on comparisons of them that Python branched on, and on sizes
that may be any."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.codegen import tuple_of
from treeplay.observe.shown import shown
from treeplay.torch_seam.symbols import NAMES
from treeplay.trace.call import Call
from treeplay.trace.numbers.numpy_numbers import as_float, is_float
from treeplay.trace.signature.make import has_symbol
from treeplay.values.arithmetic import literal
from treeplay.values.mismatch import Mismatch
from treeplay.values.signature import Input, Number, is_integer_of_64_bits
from treeplay.values.sizes import AskedOfSizes
from treeplay.values.structure import as_written
from treeplay.wrap.conditions import Condition
from treeplay.wrap.found import current, found_at
from treeplay.wrap.places import CallText

_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class SizesAre(Condition):
    """What the trace and the compiler asked of sizes that may be any has the answers that it had."""

    asked: AskedOfSizes
    inputs: tuple[Input, ...]

    def write(self, text: CallText) -> None:
        for number in self.asked.numbers:
            text.add(f"{number.name} = {text.operand(self.inputs[number.input].source)}{number.text}")
        for name, value in NAMES.items():
            text.use(name, value)
        for question in self.asked.questions:
            text.require(question)
        text.require(f"{tuple_of(self.asked.changing)} not in {text.use('elsewhere', self.asked.elsewhere)}")

    def difference(self, call: Call) -> Mismatch | None:
        found: dict[str, Any] = dict(NAMES)
        names: dict[str, str] = {}
        for number in self.asked.numbers:
            item = self.inputs[number.input]
            tensor = found_at(item.source, call)
            if not isinstance(tensor, torch.Tensor) or tensor.dim() <= (number.dimension or 0):
                return None  # told already
            given = () if number.dimension is None else (number.dimension,)
            found[number.name] = getattr(tensor, number.what)(*given)
            names[number.name] = f"{as_written(item.name)}{number.text}"
        for question in self.asked.questions:
            if not _answer(question, found):
                told = _WORD.sub(lambda word: names.get(word[0], word[0]), question)
                used = {names[word]: found[word] for word in _WORD.findall(question) if word in names}
                return Mismatch(", ".join(used), told, ", ".join(map(str, used.values())))
        return None


def _answer(question: str, found: Mapping[str, Any]) -> Any:
    """The answer to a question about numbers; None where there is none, as behind a division by zero."""
    try:
        return eval(question, {"math": math}, found)
    except (ArithmeticError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class IsNumber(Condition):
    """A number that is an input is a float, or an integer if it was one; the code has it in a variable."""

    number: Number

    def write(self, text: CallText) -> None:
        name, value = self.number.name, self.number.value
        text.add(f"{name} = {text.value(self.number.place)}")
        if type(value) is int:
            text.require(f"type({name}) is int and {-(2**63)} <= {name} <= {2**63 - 1}")
        elif self.number.is_exact and type(value) is float:
            text.require(f"type({name}) is float")
        else:
            if self.number.is_exact:
                text.require(f"type({name}) is {text.constant(type(value))}")
            text.add(f"if type({name}) is not float: {name} = {text.use('as_float', as_float)}({name})")  # raises

    def difference(self, call: Call) -> Mismatch | None:
        found = current(self.number.place, call)
        if self.fits(found):
            return None
        wanted = "an integer of 64 bits" if type(self.number.value) is int else f"a {type(self.number.value).__name__}"
        return Mismatch(str(self.number.place), wanted, shown(found))

    def fits(self, value: object) -> bool:
        """Whether a value may be given for the number."""
        if type(self.number.value) is int:
            return is_integer_of_64_bits(value)
        return type(value) is type(self.number.value) if self.number.is_exact else is_float(value)


@dataclass(frozen=True, slots=True)
class Branches(Condition):
    """A comparison of numbers, on which Python branched, has the outcome that it had."""

    guard: Any
    numbers: tuple[Number, ...]

    def write(self, text: CallText) -> None:
        expression, expected = self.guard.expression, self.guard.expected
        if isinstance(expected, bool):
            text.require(expression if expected else f"not {expression}")
        else:
            text.require(f"{expression} == {literal(expected)}")

    @property
    def names(self) -> set[str]:
        """The numbers that it is about."""
        return {number.name for number in self.numbers if has_symbol(self.guard.expression, number.name)}

    def is_met(self, values: Mapping[str, Any]) -> bool:
        """Whether it has its outcome for these values of the numbers, by name."""
        return bool(_answer(self.guard.expression, values) == self.guard.expected)

    def difference(self, call: Call) -> Mismatch | None:
        found = {number.name: current(number.place, call) for number in self.numbers}
        if not all(IsNumber(number).fits(found[number.name]) for number in self.numbers):
            return None  # told already
        values = {name: value if type(value) in (int, float) else as_float(value) for name, value in found.items()}
        outcome = _answer(self.guard.expression, values)
        if outcome == self.guard.expected:
            return None
        about = self.names
        places = ", ".join(str(number.place) for number in self.numbers if number.name in about)
        return Mismatch(places, f"a value for which {self.guard}", shown(outcome))
