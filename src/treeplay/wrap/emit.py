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
from collections.abc import Iterable
from dataclasses import dataclass
from types import BuiltinFunctionType, MethodType
from typing import Any

import torch

from treeplay.errors import InternalError, TakenBack
from treeplay.trace.scalars import as_float
from treeplay.values.output import Cast, Fresh, SameAsInput, Static, View
from treeplay.values.place import How, Place
from treeplay.values.same import is_same, is_value
from treeplay.values.signature import (
    Alias,
    Argument,
    Built,
    Constant,
    GivenContainer,
    Gone,
    Kind,
    Ref,
    Signature,
    State,
    StateContainer,
    Watch,
    Write,
)
from treeplay.values.source import Source
from treeplay.values.spec import TensorSpec
from treeplay.values.structure import DICTS, Leaf, Structure, is_namedtuple, takes_fields_only, with_fields
from treeplay.wrap.ambience import Ambience as Ambience
from treeplay.wrap.take_back import TakeBack
from treeplay.wrap.writer import Writer


class Miss:
    """What a call function returns when the call does not fit its recording."""

    def __repr__(self) -> str:
        return "MISS"


MISS = Miss()
_LINE = 90  # characters of conditions
_KEPT = "# the state"  # where the lines come that find it
_VARIABLE = re.compile(r"\bv\d+\b")
_EXACT = (int, str, bytes, MethodType, BuiltinFunctionType)  # whose `==` takes nothing but the same


@dataclass(frozen=True, slots=True)
class CallParts:
    """What the call function calls: the recording, the native check, and what keeps order around them."""

    run: Any
    check: Any
    is_apart: Any | None  # (arguments, written state) -> bool, where a compiled graph needs it
    increment_version: Any | None
    set_grad_enabled: Any
    disable_autocast: Any
    back: TakeBack | None = None  # takes a call back whose operators failed


def emit_call(signature: Signature, ambience: Ambience, parts: CallParts, *, name: str) -> Source:
    """The call function of a recording."""
    return _Emitter(signature, ambience, parts).source(name)


class _Emitter(Writer):
    """Conditions, the call, and what follows it, in this order."""

    def __init__(self, signature: Signature, ambience: Ambience, parts: CallParts) -> None:
        super().__init__({"MISS": MISS, "run": parts.run, "check": parts.check})
        self.signature = signature
        self.ambience = ambience
        self.parts = parts
        self.inputs: list[str] = []
        self.shared: dict[Any, str] = {}
        self.kept: list[str] = []  # lines that find the state which stays what it is while the guards hold
        self.is_compared: set[int] = set()  # places that these lines compare

    def source(self, name: str) -> Source:
        self.ambient()
        self.arguments(self.signature.arguments)
        self.conditions()
        self.tensors()
        self.numbers()
        conditions, self.body = self.body, []
        self.call()
        self.writes()
        self.body.append(f"return {self.built(self.signature.results, self.signature.refs)}")
        if self.kept:
            at = conditions.index(_KEPT)
            conditions[at : at + 1] = self.keeping([*conditions[at:], *self.body])
        lines = ["def replay(args, kwargs):", "    try:"]
        lines += [f"        {line}" for line in conditions]
        errors = "KeyError, IndexError, AttributeError, ValueError, TypeError, RuntimeError"  # the last is torch's own
        lines += [f"    except ({errors}):", "        return MISS"]
        lines += [f"    {line}" for line in self.body]
        return Source(name, "\n".join(lines) + "\n", self.names, entry="replay")

    # --- conditions -----------------------------------------------------------------------------------------

    def ambient(self) -> None:
        lines: list[str] = []
        for text, names in self.ambience.conditions(self.constant, self.kinds(), self.signature.called):
            self.names |= names
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

    def arguments(self, structure: Leaf | Structure) -> None:
        if isinstance(structure, Leaf):
            raise InternalError("a call's arguments are a pair of args and kwargs, not a leaf")
        args, kwargs = structure.parts
        self.take_apart("args", args, is_known=True)
        self.take_apart("kwargs", kwargs, is_known=True)

    def take_apart(self, value: str, structure: Leaf | Structure, *, is_known: bool = False) -> None:
        """Lines that take `value` apart as recorded; `is_known` where its class cannot differ."""
        if isinstance(structure, Leaf):
            self.leaf(value, structure.index)
            return
        self.leaves[value] = value
        if not is_known:
            self.require(f"type({value}) is {self.constant(structure.cls)}")
        count = len(structure.parts)
        if structure.cls in DICTS and count and not is_known:
            names, expected = f"tuple({value})", self.constant(structure.keys)  # and their order
            if all(type(key) is str for key in structure.keys):
                self.require(f"{names} == {expected}")
            else:
                self.names["is_same"] = is_same
                self.require(f"is_same({names}, {expected})")
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
            self.body.append(f"{variable} = {step}")
            self.take_apart(variable, part)

    def leaf(self, value: str, index: int) -> None:
        recorded = self.signature.leaves[index]
        self.leaves[index] = value
        if type(recorded) is Alias:
            self.require(f"{value} is {self.leaves[recorded.of]}")
        elif type(recorded) is not TensorSpec:
            self.require(self.equals(value, recorded))

    def equals(self, value: str, recorded: Any) -> str:
        """The condition that a Python value is the recorded one: exactly, and without a call of an `__eq__` of its own."""
        if recorded is None or isinstance(recorded, bool):
            return f"{value} is {recorded}"
        constant = self.literal(recorded)
        is_usual = type(recorded) is float and recorded != 0 and recorded == recorded
        if any(type(recorded) is cls for cls in _EXACT) or is_usual:
            return f"(type({value}) is {self.constant(type(recorded))} and {value} == {constant})"
        if not is_value(recorded):
            return f"{value} is {constant}"
        self.names["is_same"] = is_same  # 0.0 is not -0.0, a NaN is a NaN, and parts of a tuple count with their types
        return f"({value} is {constant} or is_same({value}, {constant}))"

    def conditions(self) -> None:
        if self.signature.guarded is not None:
            self.names["guards"] = self.signature.guarded
            self.require("guards.holds()")
            self.keep_state(self.signature.guarded)
        for watch in self.signature.identities:
            if watch.place.how not in (How.ROOT, How.ARGUMENT):
                self.require(f"{self.value(watch.place)} is {self.constant(watch.value)}")
        for watch in self.signature.lengths:
            self.require(f"len({self.value(watch.place)}) == {watch.value}")
        for index, item in enumerate(self.signature.inputs):
            self.input(index, item.source)
        for watch in self.signature.watches:
            self.watch(watch)
        self.distinct()
        for meeting in self.signature.meetings:
            other = meeting.other if isinstance(meeting.other, str) else self.value(meeting.other)
            self.require(f"{meeting.name} {'is' if meeting.are_one else 'is not'} {other}")
        for ref in self.signature.values:
            if isinstance(ref, StateContainer):
                self.value(ref.place)  # before anything is written there

    def keep_state(self, guards: Any) -> None:
        """Find the state that the guards tell of, and compare it where it is in two places, once for all calls."""
        before, self.body = self.body, []
        for item in self.signature.inputs:
            if isinstance(item.source, State) and guards.keeps(item.source.place):
                value = self.value(item.source.place)
                for place in item.source.also:
                    if guards.keeps(place):
                        self.is_compared.add(id(place))
                        self.require(f"{self.value(place)} is {value}")
        self.kept, self.body = self.body, before
        if self.kept:
            self.body.append(_KEPT)

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

    def distinct(self) -> None:
        """Conditions that arguments which could be one tensor with another, by their specs, are no more so than they were."""
        own = [(self.leaves[at], leaf) for at, leaf in enumerate(self.signature.leaves) if type(leaf) is TensorSpec]
        others = [
            (name, item.spec)
            for name, item in zip(self.inputs, self.signature.inputs, strict=True)
            if not isinstance(item.source, Argument)
        ]
        others += [(self.constant(tensor), spec) for tensor, spec in self.signature.met]
        for at, (name, spec) in enumerate(own):
            for other, also in (*own[:at], *others):
                if spec == also:
                    self.require(f"{name} is not {other}")

    def watch(self, watch: Watch) -> None:
        self.require(self.equals(self.value(watch.place), watch.value))

    def input(self, index: int, source: Argument | State | Constant) -> None:
        if isinstance(source, Argument):
            self.inputs.append(self.leaves[source.index])
            self.same(source.also)
        elif isinstance(source, Constant):
            self.inputs.append(self.constant(source.tensor))
        else:
            self.inputs.append(self.value(source.place))
            self.same(source.also)

    def same(self, places: Iterable[Place]) -> None:
        """Conditions that `places` hold the very tensor of the newest input."""
        for place in places:
            if id(place) not in self.is_compared:
                self.require(f"{self.value(place)} is {self.inputs[-1]}")

    def tensors(self) -> None:
        """One native check of all tensor arguments and all state, and that no argument shares memory it must not."""
        checked = [self.leaves[i] for i, leaf in enumerate(self.signature.leaves) if type(leaf) is TensorSpec]
        checked += [
            name
            for name, item in zip(self.inputs, self.signature.inputs, strict=True)
            if isinstance(item.source, State)
        ]
        if checked:
            self.require(f"check({', '.join(checked)})")
        if self.signature.kind is Kind.DIFFERENTIABLE:
            self.leaves_of_autograd()
        for name, item in zip(self.inputs, self.signature.inputs, strict=True):
            if item.begins is not None:
                self.require(f"{name}.storage_offset() == {item.begins}")
        if self.parts.is_apart is not None:
            self.names["is_apart"] = self.parts.is_apart
            given = self.tuple(
                name
                for name, item in zip(self.inputs, self.signature.inputs, strict=True)
                if isinstance(item.source, Argument)
            )
            self.require(f"is_apart({given}, {self.tuple(self.inputs)})")

    def leaves_of_autograd(self) -> None:
        """Conditions that what needs a gradient is a leaf, or the result of something, as it was."""
        for name, item in zip(self.inputs, self.signature.inputs, strict=True):
            if item.is_leaf is not None:
                self.require(f"{name}.is_leaf is {item.is_leaf}")

    def numbers(self) -> None:
        for number in self.signature.numbers:
            self.body.append(f"{number.name} = {self.value(number.place)}")
            self.names["as_float"] = as_float
            self.body.append(f"if type({number.name}) is not float: {number.name} = as_float({number.name})")
        for guard in self.signature.guards:
            if isinstance(guard.expected, bool):
                self.require(guard.expression if guard.expected else f"not {guard.expression}")
            else:
                self.require(f"{guard.expression} == {guard.expected!r}")

    # --- the call -------------------------------------------------------------------------------------------

    def call(self) -> None:
        if self.signature.kind is Kind.DIFFERENTIABLE:  # its wrapper sees to modes, versions and autograd
            self.body += self.taken_back([f"out = run([{', '.join(self.inputs)}])"])
            return
        numbers = self.tuple(number.name for number in self.signature.numbers if number.is_input)
        call = f"out = run([{', '.join(self.inputs)}], {numbers})"
        if self.ambience.autocast:
            self.names["disable_autocast"] = self.parts.disable_autocast
            lines = ["with disable_autocast():", f"    {call}"]
        else:
            lines = [call]
        if self.ambience.grad_enabled:
            self.names["set_grad_enabled"] = self.parts.set_grad_enabled
            # Inside of `try`: Ctrl-C may come right after it.
            lines = ["try:", "    set_grad_enabled(False)", *(f"    {line}" for line in lines)]
            lines += ["finally:", "    set_grad_enabled(True)"]
        if self.signature.is_inference is not None:
            self.names |= {"inference_mode": torch.inference_mode, "no_grad": torch.no_grad}
            lines = [
                f"with inference_mode({self.signature.is_inference}), no_grad():",
                *(f"    {line}" for line in lines),
            ]
        self.body += self.taken_back(lines)
        written = [self.inputs[index] for index in self.signature.mutated]
        if self.parts.increment_version is not None and written and not self.ambience.inference:
            self.names["increment_version"] = self.parts.increment_version
            self.body.append(f"increment_version({self.tuple(written)})")

    def taken_back(self, lines: list[str]) -> list[str]:
        """`lines`, which run the recording, and what puts everything back if they fail."""
        back = self.parts.back
        if back is None:
            return lines
        self.names["TakenBack"] = TakenBack
        before, after = [], ["except Exception as error:", "    raise TakenBack from error"]
        if not back.keep.is_nothing:
            self.names |= {"kept": back.kept, "put_back": back.put_back}
            before = [f"before = kept({self.tuple(self.inputs)})"]
            after.insert(1, "    put_back(before)")
        return [*before, "try:", *(f"    {line}" for line in lines), *after]

    def writes(self) -> None:
        for write in self.signature.writes:
            self.write(write)

    def write(self, write: Write) -> None:
        place = write.place
        if isinstance(write.value, Static) and isinstance(write.value.value, Gone):
            self.body.append(f"{self.base(place)}.pop({self.literal(place.key)}, None)")
            return
        value = self.ref(write.value)
        match place.how:
            case How.GRAD:
                self.body.append(f"{self.owner(place)}.grad = {value}")
            case How.ITEM:
                self.body.append(f"{self.base(place)}[{self.literal(place.key)}] = {value}")
            case How.CELL:
                self.body.append(f"{self.constant(place.holder)}.cell_contents = {value}")
            case _:
                self.body.append(f"setattr({self.base(place)}, {place.key!r}, {value})")

    def owner(self, place: Place) -> str:
        """The variable of the tensor whose gradient `place` is."""
        for index, item in enumerate(self.signature.inputs):
            source = item.source
            if isinstance(source, State) and source.place.read_or(None) is place.holder:
                return self.inputs[index]
        return self.base(place)

    def ref(self, ref: Ref) -> str:
        """An expression for a result."""
        key = (type(ref), repr(ref))
        match ref:
            case Fresh(index, requires_grad):
                return f"out[{index}].requires_grad_()" if requires_grad else f"out[{index}]"
            case SameAsInput(index):
                return self.inputs[index]
            case Static(value):
                return self.literal(value)
            case GivenContainer(name):
                return name
            case StateContainer(place):
                return self.value(place)
            case Built(structure, refs, None):
                return self.built(structure, refs)
            case Built(structure, refs, number):
                return self.shared.get(number) or self.once(number, self.built(structure, refs))
            case View(of, layout, is_detached, requires_grad, cast):
                base = self.ref(of)
                mark = ".requires_grad_()" if requires_grad else ""
                if cast is not None:
                    base = self.cast(base, cast, is_input=isinstance(of, SameAsInput))
                is_whole = isinstance(of, Fresh) and cast is None  # it begins where its memory does
                start = str(layout.offset) if is_whole else f"{base}.storage_offset() + {layout.offset}"
                source = f"{base}.detach()" if is_detached else base
                return self.once(key, f"{source}.as_strided({layout.shape}, {layout.stride}, {start}){mark}")

    def cast(self, base: str, cast: Cast, *, is_input: bool) -> str:
        """A variable for a piece of memory read as another dtype."""
        begin = f"{base}.storage_offset() + {cast.start}" if is_input else str(cast.start)
        piece = f"{base}.as_strided(({cast.length},), (1,), {begin})"
        if not cast.is_complex:
            expression = f"{piece}.view({self.constant(cast.dtype)})"
        elif cast.dtype.is_complex:
            self.names["view_as_complex"] = torch.view_as_complex
            expression = f"view_as_complex({piece}.view(-1, 2))"
        else:
            self.names["view_as_real"] = torch.view_as_real
            expression = f"view_as_real({piece}).view(-1)"
        return self.once((base, cast), expression)

    def once(self, key: Any, expression: str) -> str:
        """A variable for an expression that must give one object however often it is used."""
        name = f"view_{len(self.shared)}" if key not in self.shared else self.shared[key]
        if key not in self.shared:
            self.shared[key] = name
            self.body.append(f"{name} = {expression}")
        return name

    def built(self, structure: Leaf | Structure, refs: tuple[Ref, ...]) -> str:
        """An expression that builds a container of results."""
        if isinstance(structure, Leaf):
            return self.ref(refs[structure.index])
        parts = [self.built(part, refs) for part in structure.parts]
        if structure.is_named:
            if not takes_fields_only(structure.cls):
                self.names["with_fields"] = with_fields
                return f"with_fields({self.constant(structure.cls)}, {structure.keys}, {self.tuple(parts)})"
            fields = ", ".join(f"{name}={part}" for name, part in zip(structure.keys, parts, strict=True))
            return f"{self.constant(structure.cls)}({fields})"
        if structure.cls in DICTS:
            pairs = zip(structure.keys, parts, strict=True)
            display = "{" + ", ".join(f"{self.literal(key)}: {part}" for key, part in pairs) + "}"
            return display if structure.cls is dict else f"{self.constant(structure.cls)}({display})"
        if structure.cls is list:
            return f"[{', '.join(parts)}]"
        if is_namedtuple(structure.cls):
            self.names["new"] = tuple.__new__  # its own `__new__` has run
            return f"new({self.constant(structure.cls)}, {self.tuple(parts)})"
        if structure.cls is not tuple:  # one of torch's named results, made of a tuple
            return f"{self.constant(structure.cls)}({self.tuple(parts)})"
        return self.tuple(parts)
