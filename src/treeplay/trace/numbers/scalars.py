"""Numbers that stay numbers: symbolic ones for optimizer hyper-parameters, host scalars, and floats and integers as arguments.

While a program is traced, `group["lr"]` holds a `torch.SymFloat` whose node is a `Scalar`, and an integer among the arguments
may be a `torch.SymInt` with one. Arithmetic on it builds an expression; a comparison that Python branches on becomes a guard;
and a place that insists on a plain float (such as `math.sqrt`) gets today's value and an equality guard. So a hyper-parameter
can change between calls, and none freezes unnoticed.

    group["lr"] -> Scalar("s0")   -lr -> Scalar("(-s0)")   if lr != 0: -> guard "(s0 != 0.0)" is True
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from types import CodeType
from typing import Any

import torch
import torch.fx

from treeplay.errors import Refusal
from treeplay.guards.reads.reads import Reads
from treeplay.observe.lines import OURS, TORCH, user_location
from treeplay.sandbox.interrupts import asked_by_cpp
from treeplay.values.arithmetic import COMPARISONS, FORMS, literal

SYMBOLS = (torch.SymFloat, torch.SymInt, torch.SymBool)


@dataclass(frozen=True, slots=True)
class ScalarGuard:
    """A Python expression over the scalar inputs `s0, s1, ...` and the value it must keep."""

    expression: str
    expected: bool | float

    def __str__(self) -> str:
        return f"{self.expression} is {self.expected}"


@dataclass(slots=True)
class ScalarWorld:
    """What one trace knows of its symbolic numbers: the graph they are written to and the guards they left."""

    graph: torch.fx.Graph
    guards: dict[str, ScalarGuard] = field(default_factory=dict)
    reads: Reads | None = None  # which is not to note what we do ourselves
    thread: int = field(default_factory=get_ident)

    @property
    def is_mine(self) -> bool:
        """Whether this thread traces. Another one that comes across a number finds today's value, and leaves no mark."""
        return get_ident() == self.thread

    def call(self, fn: Callable[..., Any], *args: Any) -> torch.fx.Node:
        """A node of the graph for a call."""
        node: torch.fx.Node = self._unnoted(lambda: self.graph.call_function(fn, args))
        return node

    def guard(self, text: str, expected: bool | float) -> None:
        """Remember that `text` was decided to be `expected`."""
        if text not in self.guards:
            self._unnoted(lambda: self.guards.setdefault(text, ScalarGuard(text, expected)))

    def _unnoted(self, do: Callable[[], Any]) -> Any:
        was_noting = self.reads is not None and self.reads.pause()
        try:
            return do()
        finally:
            if self.reads is not None and was_noting:
                self.reads.resume()


class Scalar:
    """A node for `torch.SymFloat` and `torch.SymBool`: value today, text of the expression, and its graph node.

    `text` is an expression over the scalar inputs, or None for a number that depends on a tensor's value; such
    a number has no value while tracing, and Python may not branch on it.
    """

    constant = None

    def __init__(
        self,
        world: ScalarWorld,
        *,
        text: str | None,
        value: float | bool,
        node: torch.fx.Node | float | bool,
        boolean: bool = False,
        integer: bool = False,
    ) -> None:
        self.world = world
        self.text = text
        self.value = value
        self.node = node
        self.boolean = boolean
        self.integer = integer
        if integer and isinstance(node, torch.fx.Node):
            node.meta["is_integer"] = True

    # What torch asks of every symbolic number, also while it puts the arguments of an operator together.
    @asked_by_cpp
    def is_int(self) -> bool:
        return self.integer

    @asked_by_cpp
    def is_float(self) -> bool:
        return not self.boolean and not self.integer

    @asked_by_cpp
    def is_bool(self) -> bool:
        return self.boolean

    @asked_by_cpp
    def is_nested_int(self) -> bool:
        return False

    @asked_by_cpp
    def is_symbolic(self) -> bool:
        return True

    @asked_by_cpp
    def is_constant(self) -> bool:
        return False

    @asked_by_cpp
    def has_hint(self) -> bool:
        return True

    @asked_by_cpp
    def maybe_as_int(self) -> None:
        return None

    @asked_by_cpp
    def maybe_as_float(self) -> None:
        return None

    @asked_by_cpp
    def maybe_as_bool(self) -> None:
        return None

    @asked_by_cpp
    def clone(self) -> Scalar:
        return self

    def wrap_int(self, number: int) -> Scalar:
        return self._constant(number, integer=True) if self.integer else self._constant(float(number))

    def wrap_float(self, number: float) -> Scalar:
        return self._constant(number)

    def wrap_bool(self, number: bool) -> Scalar:
        return self._constant(number)

    def _constant(self, number: float, *, boolean: bool = False, integer: bool = False) -> Scalar:
        return Scalar(self.world, text=literal(number), value=number, node=number, boolean=boolean, integer=integer)

    # Where a plain value is needed.
    def guard_float(self, file: str, line: int) -> float:
        return float(self._decide())

    def guard_bool(self, file: str, line: int) -> bool:
        return bool(self._decide())

    def bool_(self) -> bool:
        if self.boolean:
            return bool(self._decide())
        # `if weight_decay:` asks whether it is zero, not what it is.
        return bool(self._computed(operator.ne, self.wrap_int(0))._decide())

    def expect_true(self, file: str, line: int) -> bool:
        # torch checks that the base of a power is not negative; for a number read from a tensor only the run can tell.
        return True if self.text is None else bool(self._decide())

    def guard_int(self, file: str, line: int) -> int:
        return int(self._decide())

    def int_(self) -> int:
        return int(self._decide())

    def float_(self) -> float:
        return float(self._decide())

    def _decide(self) -> float | bool:
        if not self.world.is_mine:
            return self.value
        if self.text is None:
            raise Refusal.of(
                "number of a tensor",
                "the program needs, while it runs, the value of a number that lives in a tensor",
                "where an optimizer decides, call its step outside of the program, or use its capturable=True form on a GPU; "
                "else keep the decision on the device with torch.where",
                user_location(),
            )
        self.world.guard(self.text, self.value)
        return self.value

    def __str__(self) -> str:
        if not self.world.is_mine:
            return repr(self.value)
        # By the frame above torch's own `__repr__`: what a program makes of the text, a name of an entry say, it may keep.
        if self.integer or not sys._getframe(2).f_code.co_filename.startswith((TORCH, OURS)):
            return repr(self._decide())
        return f"<{self.text or 'number of a tensor'}>"

    __repr__ = __str__
    _graph_repr = __str__

    def _computed(self, fn: Callable[..., Any], *others: Scalar) -> Scalar:
        of = (self, *others)
        texts = [each.text for each in of]
        known, boolean = None not in texts, fn in COMPARISONS
        is_given = known or not others
        # Numbers of tensors have no value: any will do, since `_decide` refuses to tell it.
        value: float | bool = fn(*(each.value for each in of)) if is_given else False if boolean else 1.0
        integer = type(value) is int
        if not self.world.is_mine:
            return self._constant(value, boolean=boolean, integer=integer)
        words = FORMS[fn].format(*texts)
        return Scalar(
            self.world,
            text=None if not known else words if fn in (abs, float) else f"({words})",
            value=value,
            node=self.world.call(fn, *(each.node for each in of)),
            boolean=boolean,
            integer=integer,
        )

    def pos(self) -> Scalar:
        return self

    def sym_float(self) -> Scalar:
        return self._computed(float) if self.integer else self


def _install(name: str, fn: Callable[..., Any]) -> None:
    def method(self: Scalar, *others: Scalar) -> Scalar:
        return self._computed(fn, *others)

    setattr(Scalar, name, method)


setattr(Scalar, "str", Scalar.__str__)  # torch's name for it; as a `def` it would hide the type in the class  # noqa: B010
_METHODS = {
    **{fn.__name__: fn for fn in FORMS if fn is not float},
    "float_truediv": operator.truediv,
    "int_truediv": operator.truediv,
    "int_floordiv": operator.floordiv,
    "float_pow": operator.pow,
    "pow_by_natural": operator.pow,
}
"""What torch calls of a symbolic number."""
for _name, _fn in _METHODS.items():
    _install(_name, _fn)


def symbolic(scalar: Scalar) -> torch.SymFloat | torch.SymInt:
    """The number Python sees for `scalar`."""
    return torch.SymInt(scalar) if scalar.integer else torch.SymFloat(scalar)


def value_of(number: Any) -> Any:
    """What a number is in this call; nothing is guarded."""
    scalar = scalar_of(number)
    return number if scalar is None else scalar.value


def plain(value: Any) -> Any:
    """A symbolic number as it is in this call, which is guarded; anything else as it is."""
    scalar = scalar_of(value)
    if scalar is None:
        return value
    return int(value) if scalar.integer else float(value)


def scalar_of(value: object) -> Scalar | None:
    """The node behind a symbolic number of ours, or None."""
    if isinstance(value, SYMBOLS):
        node = value.node
        if isinstance(node, Scalar):
            return node
    return None


def class_for(number: Any, code: CodeType) -> type | None:
    """The class of the number that a symbolic one stands for, if it is the program that asks; None if it is torch or we."""
    # Without `isinstance`, which asks this function.
    if code.co_filename.startswith((TORCH, OURS)) or type(number.node) is not Scalar:
        return None
    scalar: Scalar = number.node
    return bool if scalar.boolean else int if scalar.integer else float
