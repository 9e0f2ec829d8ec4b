"""The conditions that a call has to meet, as data: each is written as code of the warm call and told as a difference.

    Signature ─ of_signature.py ─▶ Condition ─┬─ write ───────▶ if not (v3 is args_0): return MISS
                                              └─ difference ──▶ self.model.weight: another object

Both speak of the same operands, so that neither can know of a condition that the other does not. Those on numbers are in
`conditions_on_numbers.py`. What a call looks like as a whole (its containers) and the modes around it are compared by the
emitter and by `tree/mismatch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.codegen import tuple_of
from treeplay.codegen.idioms import is_exactly
from treeplay.observe.shown import shown
from treeplay.torch_seam.facts import BY_NAME, base_among
from treeplay.torch_seam.tensors import spec_of
from treeplay.trace.call import Call
from treeplay.trace.training.hooks import HookTables
from treeplay.values.mismatch import Mismatch
from treeplay.values.place import Place
from treeplay.values.same import is_same
from treeplay.values.signature import Argument, GivenContainer
from treeplay.values.spec import TensorSpec
from treeplay.values.which import which_in
from treeplay.wrap.found import current, found_at
from treeplay.wrap.places import CallText, Operand


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a call. What it is about, as far as the arguments of a call may be, are fields that are operands."""

    def write(self, text: CallText) -> None:
        """Add the line that misses unless the condition holds."""
        raise NotImplementedError

    def difference(self, call: Call) -> Mismatch | None:
        """What does not hold in `call`; None if it does."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Anything(Condition):
    """No condition: what the run did not read."""

    def write(self, text: CallText) -> None:
        pass

    def difference(self, call: Call) -> Mismatch | None:
        return None


@dataclass(frozen=True, slots=True)
class Fits(Condition):
    """A tensor is as described. Its code is one native check of all tensors, after the others."""

    of: Operand
    name: str
    spec: TensorSpec
    cls: type | None  # where it is known

    def write(self, text: CallText) -> None:
        text.checked.append(text.operand(self.of))

    def difference(self, call: Call) -> Mismatch | None:
        found = found_at(self.of, call)
        if not isinstance(found, torch.Tensor):
            told = type(found).__name__ if isinstance(self.of, Argument) else shown(found)
            return Mismatch(self.name, str(self.spec), told)
        spec = spec_of(found)
        if not self.spec.takes(spec):
            return Mismatch(self.name, str(self.spec), f"{spec} ({spec.difference(self.spec)})")
        if self.cls is None or type(found) is self.cls:
            return None
        return Mismatch(self.name, f"a {self.cls.__qualname__}", f"a {type(found).__qualname__}")


@dataclass(frozen=True, slots=True)
class IsValue(Condition):
    """A Python value is exactly the recorded one."""

    of: Operand
    name: str
    value: Any

    def write(self, text: CallText) -> None:
        text.require(is_exactly(text, text.operand(self.of), self.value))

    def difference(self, call: Call) -> Mismatch | None:
        found = found_at(self.of, call)
        if is_same(found, self.value):
            return None
        hooks = self.of.holder if isinstance(self.of, Place) else None
        told = hooks.difference() if isinstance(hooks, HookTables) else None
        return told or Mismatch(self.name, shown(self.value), shown(found))


@dataclass(frozen=True, slots=True)
class AreOne(Condition):
    """Two operands are one object, or are not. `told` is what they were, and what they are now."""

    one: Operand
    other: Operand
    name: str
    told: tuple[str, str]
    are_one: bool = True

    def write(self, text: CallText) -> None:
        text.require(f"{text.operand(self.one)} {'is' if self.are_one else 'is not'} {text.operand(self.other)}")

    def difference(self, call: Call) -> Mismatch | None:
        is_met = (found_at(self.one, call) is found_at(self.other, call)) is self.are_one
        return None if is_met else Mismatch(self.name, *self.told)


@dataclass(frozen=True, slots=True)
class IsItself(Condition):
    """An argument is the very object that it was."""

    of: GivenContainer
    name: str
    original: Callable[[], Any]

    def write(self, text: CallText) -> None:
        text.require(f"{text.constant(self.original)}() is {text.operand(self.of)}")

    def difference(self, call: Call) -> Mismatch | None:
        found = found_at(self.of, call)
        if found is self.original():
            return None
        return Mismatch(
            self.name, f"this {type(found).__name__}, which the program can tell from others", "another object"
        )


@dataclass(frozen=True, slots=True)
class IsStranger(Condition):
    """An argument is none of the objects that the run met elsewhere."""

    of: GivenContainer
    name: str
    met: Set[int]

    def write(self, text: CallText) -> None:
        text.require(f"id({text.operand(self.of)}) not in {text.constant(self.met)}")

    def difference(self, call: Call) -> Mismatch | None:
        if id(found_at(self.of, call)) not in self.met:
            return None
        return Mismatch(self.name, "an object that the program has nowhere else", "one that it has elsewhere too")


@dataclass(frozen=True, slots=True)
class AreDistinct(Condition):
    """Arguments of one class are as many objects."""

    first: GivenContainer
    others: tuple[GivenContainer, ...]

    def write(self, text: CallText) -> None:
        every = [text.operand(of) for of in (self.first, *self.others)]
        if len(every) == 2:
            text.require(f"{every[0]} is not {every[1]}")
        else:
            text.require(f"len({{{', '.join(f'id({of})' for of in every)}}}) == {len(every)}")

    def difference(self, call: Call) -> Mismatch | None:
        every = (self.first, *self.others)
        if len({id(found_at(of, call)) for of in every}) == len(every):
            return None
        return Mismatch(" and ".join(of.name for of in every), "different objects", "one object in two places")


@dataclass(frozen=True, slots=True)
class AreInSlot(Condition):
    """Of these arguments those are in what is at a place that were, and there."""

    first: GivenContainer
    others: tuple[GivenContainer, ...]
    place: Place
    which: tuple[int, ...]

    def write(self, text: CallText) -> None:
        given = tuple_of(map(text.operand, (self.first, *self.others)))
        text.require(f"{text.use('which_in', which_in)}({text.value(self.place)}, {given}) == {self.which}")

    def difference(self, call: Call) -> Mismatch | None:
        now = which_in(current(self.place, call), [found_at(of, call) for of in (self.first, *self.others)])
        if now == self.which:
            return None
        return Mismatch(str(self.place), "other objects than the arguments, or these", "one of them, or others")


@dataclass(frozen=True, slots=True)
class HasLength(Condition):
    """A container on the way to state has as many entries as it had."""

    place: Place
    length: int

    def write(self, text: CallText) -> None:
        text.require(f"len({text.value(self.place)}) == {self.length}")

    def difference(self, call: Call) -> Mismatch | None:
        found = current(self.place, call)
        length = len(found) if hasattr(found, "__len__") else shown(found)
        return None if length == self.length else Mismatch(f"length of {self.place}", str(self.length), str(length))


@dataclass(frozen=True, slots=True)
class GuardsHold(Condition):
    """What the traced run read is as it was."""

    guards: Any

    def write(self, text: CallText) -> None:
        text.require(f"{text.use('guards', self.guards)}.holds()")

    def difference(self, call: Call) -> Mismatch | None:
        found: Mismatch | None = self.guards.first_difference()
        return found


@dataclass(frozen=True, slots=True)
class IsLeaf(Condition):
    """A tensor is where a backward ends, or is the result of something, as it was."""

    of: Operand
    name: str
    is_leaf: bool

    def write(self, text: CallText) -> None:
        text.require(f"{text.operand(self.of)}.is_leaf is {self.is_leaf}")

    def difference(self, call: Call) -> Mismatch | None:
        found = found_at(self.of, call)
        if not isinstance(found, torch.Tensor) or found.is_leaf is self.is_leaf:
            return None
        told = {True: "a leaf of autograd", False: "the result of something differentiable"}
        return Mismatch(self.name, told[self.is_leaf], told[found.is_leaf])


@dataclass(frozen=True, slots=True)
class HasFact(Condition):
    """A question of the program's to a tensor has the answer that it had. It may be a view of one of `checked`."""

    of: Operand
    name: str
    asked: str
    answer: Any
    checked: tuple[Operand, ...]

    def write(self, text: CallText) -> None:
        tensor = text.operand(self.of)
        if isinstance(self.answer, tuple):
            asks, others = text.use("base_among", base_among), tuple_of(map(text.operand, self.checked))
            text.require(f"{asks}({tensor}, {others}) == {text.constant(self.answer)}")
        else:
            text.require(is_exactly(text, BY_NAME[self.asked].code.format(tensor), self.answer))

    def difference(self, call: Call) -> Mismatch | None:
        found = found_at(self.of, call)
        if not isinstance(found, torch.Tensor):
            return None  # told already
        if isinstance(self.answer, tuple):
            now: Any = base_among(found, [found_at(other, call) for other in self.checked])
        else:
            now = BY_NAME[self.asked].ask(found)
        if is_same(now, self.answer) or (isinstance(now, tuple) and now == self.answer):
            return None
        return Mismatch(f"{self.name}.{self.asked}", shown(self.answer), shown(now))


@dataclass(frozen=True, slots=True)
class Begins(Condition):
    """A tensor begins where it did in its storage."""

    of: Operand
    name: str
    at: int

    def write(self, text: CallText) -> None:
        text.require(f"{text.operand(self.of)}.storage_offset() == {self.at}")

    def difference(self, call: Call) -> Mismatch | None:
        found = found_at(self.of, call)
        if not isinstance(found, torch.Tensor) or found.storage_offset() == self.at:
            return None
        return Mismatch(f"storage offset of {self.name}", str(self.at), str(found.storage_offset()))
