"""From a `Signature` to the one straight-line function that a warm call runs.

    def replay(args, kwargs):              the function returns MISS if the call does not fit
        a0, a1 = args                      arguments taken apart
        if names['model'] is not c0: ...   objects on the way to state
        i0 = table1['weight']              state, read where it lives
        if not check(a0, a1, i0): ...      one native check of all tensors
        out = run([a0, a1, i0], (s0,))     the recording
        i0.grad = out[1]                   slots
        return out[0]

Pure: the emitter returns text and names. Nothing here runs a program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.codegen import Source, list_of, tuple_of
from treeplay.codegen.idioms import NO_GRAD, note_writes, switched
from treeplay.errors import DidNotPass, TakenBack
from treeplay.torch_seam import flags
from treeplay.values.output import Computed, Static
from treeplay.values.place import How, Place
from treeplay.values.records import setter_of
from treeplay.values.signature import Argument, Gone, Kind, Signature, State, StateContainer, Write
from treeplay.values.spec import TensorSpec
from treeplay.wrap.ambience import Ambience
from treeplay.wrap.conditions import AreOne, GuardsHold
from treeplay.wrap.of_signature import of_numbers, of_places, of_state, of_tensors
from treeplay.wrap.places import CallText
from treeplay.wrap.results import built, expression_of
from treeplay.wrap.take_apart import take_arguments_apart
from treeplay.wrap.take_back import TakeBack


class Miss:
    """What a call function returns when the call does not fit its recording."""

    def __repr__(self) -> str:
        return "MISS"


MISS = Miss()
_LINE = 90  # characters of conditions
_KEPT = "# the state"  # where the lines come that find it
_VARIABLE = re.compile(r"\bv\d+\b")


@dataclass(frozen=True, slots=True)
class CallParts:
    """What the call function calls: the recording, the native check, and what keeps order around them."""

    run: Any
    check: Any
    is_apart: Any | None = None  # (arguments, written state) -> bool, where a compiled graph needs it
    is_unnoticed: bool = False  # whether autograd has to be told what the recording wrote
    back: TakeBack | None = None  # takes a call back whose operators failed


def emit_recording_call(signature: Signature, ambience: Ambience, parts: CallParts, *, name: str) -> Source:
    """The call function of a recording."""
    return _CallEmitter(signature, ambience, parts).written(name)


class _CallEmitter(CallText):
    """Conditions, the call, and what follows it, in this order."""

    def __init__(self, signature: Signature, ambience: Ambience, parts: CallParts) -> None:
        super().__init__(MISS=MISS, run=parts.run, check=parts.check)
        self.signature = signature
        self.ambience = ambience
        self.parts = parts
        self.kept: list[str] = []  # lines that find the state which stays what it is while the guards hold
        self.is_compared: set[int] = set()  # places that these lines compare
        self.launched = 0  # lines of the body up to the end of the launch

    def written(self, name: str) -> Source:
        """The whole function."""
        with self.aside() as conditions:
            self.ambient()
            take_arguments_apart(self, self.signature)
            self.conditions()
        with self.aside() as body:
            self.call()
            self.writes()
            self.add(*(f"{self.constant(schedule)}.step()" for schedule in self.signature.schedules))
            self.add(f"return {built(self, self.signature.results, self.signature.refs)}")
        if self.kept:
            # Only now: which variables of the state are used shows once all lines are there.
            at = conditions.index(_KEPT)
            conditions[at : at + 1] = self.keeping([*conditions[at:], *body])
        # ArithmeticError: of 1 / n where n is 0 now. RuntimeError: of torch.
        errors = "KeyError, IndexError, AttributeError, ValueError, TypeError, ArithmeticError, RuntimeError"
        with self.block("def replay(args, kwargs):"):
            with self.block("try:"):
                self.add(*conditions)
            self.add(f"except ({errors}):", "    return MISS")
            launched = len(self.lines) + self.launched
            # Outside of the `try`: what is raised from here on is no miss, since effects may have happened.
            self.add(*body)
        return self.source(name, entry="replay", launched=launched)

    # --- conditions -----------------------------------------------------------------------------------------

    def ambient(self) -> None:
        lines: list[str] = []
        for text, names in self.ambience.conditions(self.constant, self.kinds(), self.signature.called):
            for key, value in names.items():
                self.use(key, value)
            if lines and len(lines[-1]) + len(text) < _LINE:
                lines[-1] += f" and {text}"
            else:
                lines.append(text)
        for line in lines:
            self.require(line)

    def kinds(self) -> set[str]:
        """The kinds of device of the tensors that are checked."""
        specs = [leaf for leaf in self.signature.leaves if type(leaf) is TensorSpec]
        specs += [item.spec for item in self.signature.inputs if isinstance(item.source, State)]
        return {spec.device.type for spec in specs}

    def conditions(self) -> None:
        """Conditions on what the program reaches; the native check of all tensors; conditions on these and on numbers."""
        for condition in of_state(self.signature):
            if isinstance(condition, AreOne) and id(condition.one) in self.is_compared:  # by `keep_state`
                continue
            condition.write(self)
            if isinstance(condition, GuardsHold):
                self.keep_state(condition.guards)
        for ref in self.signature.values:
            if isinstance(ref, StateContainer):
                self.value(ref.place)  # before anything is written there
        self.inputs = [self.operand(item.source) for item in self.signature.inputs]
        if self.checked:
            self.require(f"check({', '.join(self.checked)})")
        for condition in of_tensors(self.signature):
            condition.write(self)
        self.apart()
        for condition in of_numbers(self.signature):
            condition.write(self)
        for ref in self.signature.values:
            if isinstance(ref, Computed):
                expression_of(self, ref)  # which raises where the program does, as for a quotient

    def keep_state(self, guards: Any) -> None:
        """Find the state that the guards tell of, and compare it where it is in two places, once for all calls."""
        with self.aside() as self.kept:
            for item in self.signature.inputs:
                if isinstance(item.source, State) and guards.keeps(item.source.place):
                    self.value(item.source.place)
                    for condition in of_places(item):
                        if guards.keeps(condition.one):
                            self.is_compared.add(id(condition.one))
                            condition.write(self)
        if self.kept:
            self.add(_KEPT)

    def keeping(self, after: list[str]) -> list[str]:
        """The lines that find the state, or have it from the call before; `after` are those that use it."""
        found = {line.partition(" = ")[0] for line in self.kept if not line.startswith("if")}
        used = {name for line in after for name in _VARIABLE.findall(line)}
        state = ", ".join(sorted(found & used, key=lambda name: int(name[1:])))
        if not state:
            return self.kept
        return [
            "if guards.kept is not None:",
            f"    {state}, = guards.kept",
            "else:",
            *(f"    {line}" for line in self.kept),
            f"    if guards.may_keep: guards.kept = ({state},)",
        ]

    def apart(self) -> None:
        """The condition that no argument shares memory it must not."""
        if self.parts.is_apart is not None:
            arguments = (item.source for item in self.signature.inputs if isinstance(item.source, Argument))
            given = tuple_of(map(self.operand, arguments))
            self.require(f"{self.use('is_apart', self.parts.is_apart)}({given}, {tuple_of(self.inputs)})")

    # --- the call -------------------------------------------------------------------------------------------

    def call(self) -> None:
        if self.signature.kind is Kind.DIFFERENTIABLE:  # its wrapper sees to modes, versions and autograd
            with self.taken_back():
                self.add(f"out = run({list_of(self.inputs)})")
                self.launched = len(self.lines)
            return
        numbers = tuple_of(number.name for number in self.signature.numbers if number.is_input)
        lines = [f"out = run({list_of(self.given())}, {numbers})"]
        if self.ambience.autocast:
            lines = [f"with {self.use('disable_autocast', flags.without_autocast)}():", f"    {lines[0]}"]
        with self.taken_back():
            with self.inference():
                if self.ambience.grad_enabled:
                    switched(self, [NO_GRAD], lines)
                else:
                    self.add(*lines)
            self.launched = len(self.lines)
            if self.signature.answer is not None:
                self.add(f"if not out[{self.signature.answer}].item(): raise {self.use('DidNotPass', DidNotPass)}()")
        written = [self.inputs[index] for index in self.signature.mutated if self.signature.inputs[index].is_told]
        if self.parts.is_unnoticed and written and not self.ambience.inference:
            note_writes(self, written)

    def given(self) -> Iterator[str]:
        """What the recording is given: the inputs, those on the CPU as copies on the GPU."""
        for item, text in zip(self.signature.inputs, self.inputs, strict=True):
            move = item.source.moves_to if isinstance(item.source, Argument) else None
            words = f"{self.constant(move.device)}, non_blocking={move.non_blocking}" if move is not None else ""
            yield f"{text}.to({words})" if words else text

    def inference(self) -> AbstractContextManager[None]:
        """What is around the run of a program that was recorded under inference mode, or outside of it by its own doing."""
        if self.signature.is_inference is None:
            return nullcontext()
        mode, no_grad = self.use("inference_mode", torch.inference_mode), self.use("no_grad", torch.no_grad)
        return self.block(f"with {mode}({self.signature.is_inference}), {no_grad}():")

    @contextmanager
    def taken_back(self) -> Iterator[None]:
        """Around the run of the recording, what puts everything back if that fails."""
        back = self.parts.back
        if back is None:
            yield
            return
        if not back.keep.is_nothing:
            self.add(f"before = {self.use('kept', back.kept)}({tuple_of(self.inputs)})")
        with self.block("try:"):
            yield
        with self.block("except Exception as error:"):
            if not back.keep.is_nothing:
                self.add(f"{self.use('put_back', back.put_back)}(before)")
            self.add(f"raise {self.use('TakenBack', TakenBack)} from error")

    def writes(self) -> None:
        for write in self.signature.writes:
            self.write(write)

    def write(self, write: Write) -> None:
        place = write.place
        if isinstance(write.value, Static) and isinstance(write.value.value, Gone):
            self.add(f"{self.base(place)}.pop({self.literal(place.key)}, None)")
            return
        value = expression_of(self, write.value)
        match place.how:
            case How.GRAD:
                self.add(f"{self.owner(place)}.grad = {value}")
            case How.ITEM:
                self.add(f"{self.base(place)}[{self.literal(place.key)}] = {value}")
            case How.CELL:
                self.add(f"{self.constant(place.holder)}.cell_contents = {value}")
            case How.SLOT:
                self.add(f"{self.constant(place.key)}.__set__({self.base(place)}, {value})")
            case _:
                put = setter_of(place.holder)
                name = "setattr" if put is setattr else self.use("put", put)
                self.add(f"{name}({self.base(place)}, {place.key!r}, {value})")

    def owner(self, place: Place) -> str:
        """The variable of the tensor whose gradient `place` is."""
        for index, item in enumerate(self.signature.inputs):
            source = item.source
            if isinstance(source, State) and source.place.read_or(None) is place.holder:
                return self.inputs[index]
        return self.base(place)
