"""Numbers that stay numbers: symbolic ones for optimizer hyper-parameters, host scalars, and floats and integers as arguments.

While a program is traced, `group["lr"]` holds a `torch.SymFloat` whose node is a `Scalar`, and an integer among the arguments
may be a `torch.SymInt` with one. Arithmetic on it builds an expression; a comparison that Python branches on becomes a guard;
and a place that insists on a plain float (such as `math.sqrt`) gets today's value and an equality guard. So a hyper-parameter
can change between calls, and none freezes unnoticed.

    group["lr"] -> Scalar("s0")   -lr -> Scalar("(-s0)")   if lr != 0: -> guard "(s0 != 0.0)" is True
"""

from __future__ import annotations

import math
import operator
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from treeplay.errors import Refusal
from treeplay.observe.lines import OURS, TORCH, user_location
from treeplay.sandbox.interrupts import asked_by_cpp
from treeplay.trace.numbers.asked_by_torch import AskedByTorch
from treeplay.trace.numbers.bits import may_exceed_floats, may_leave, note_bits
from treeplay.trace.numbers.numpy_numbers import as_pythons, numpys_class
from treeplay.trace.numbers.world import ScalarWorld
from treeplay.values.arithmetic import CALLS, COMPARISONS, DIVISIONS, FORMS, FUNCTIONS, NOT_COMPUTED, PARTIAL, literal
from treeplay.values.signature import is_integer_of_64_bits

SYMBOLS = (torch.SymFloat, torch.SymInt, torch.SymBool)


class Scalar(AskedByTorch):
    """A node for `torch.SymFloat` and `torch.SymBool`: value today, text of the expression, and its graph node.

    `text` is an expression over the scalar inputs, or None for a number that depends on a tensor's value; such
    a number has no value while tracing, and Python may not branch on it. `is_numpys`: eager has one of NumPy's classes there,
    which is computed with as one of Python's, in the same precision.
    """

    def __init__(
        self,
        world: ScalarWorld,
        *,
        text: str | None,
        value: float | bool,
        node: torch.fx.Node | float | bool,
        boolean: bool = False,
        integer: bool = False,
        is_numpys: bool = False,
    ) -> None:
        self.world = world
        self.text = text
        self.value = value
        self.node = node
        self.boolean = boolean
        self.integer = integer
        self.is_numpys = is_numpys
        world.made.append(weakref.ref(self))
        if integer and isinstance(node, torch.fx.Node):
            node.meta["is_integer"] = True

    @asked_by_cpp
    def clone(self) -> Scalar:
        return self

    def wrap_int(self, number: int) -> Scalar:
        return self.fixed(float(number) if self.is_float() else int(number))

    def wrap_float(self, number: float) -> Scalar:
        return self.fixed(number)

    def wrap_bool(self, number: bool) -> Scalar:
        return self.fixed(number)

    def fixed(self, number: Any, *, boolean: bool = False) -> Scalar:
        """A number that is the same in each call."""
        known = as_pythons(number)
        return Scalar(
            self.world,
            text=literal(known),
            value=known,
            node=known,
            boolean=boolean,
            integer=type(known) is int,
            is_numpys=known is not number,
        )

    def beside(self, number: Any) -> torch.SymFloat | torch.SymInt:
        """A number of NumPy's, to compute with."""
        return symbolic(self.fixed(number))

    @property
    def cls(self) -> type:
        """The class of the number that it stands for."""
        cls = bool if self.boolean else int if self.integer else float
        return numpys_class(cls) if self.is_numpys else cls

    @property
    def fits(self) -> bool:
        """Whether an operator may take it today, for which each call asks: torch's integers have 64 bits, and Python's any."""
        if not self.integer or self.text is None or not may_leave(self.node):
            return True
        is_met = is_integer_of_64_bits(self.value)
        if is_met and self.world.is_mine:
            self.world.guard(f"({-(2**63)} <= {self.text} <= {2**63 - 1})", expected=True)
        return is_met

    # Where a plain value is needed.
    def guard_float(self, file: str, line: int) -> float:
        return float(self.decide())

    def guard_bool(self, file: str, line: int) -> bool:
        return bool(self.decide())

    def bool_(self) -> bool:
        if self.boolean:
            return bool(self.decide())
        # `if weight_decay:` asks whether it is zero, not what it is.
        return bool(self.computed(operator.ne, self.wrap_int(0)).decide())

    def expect_true(self, file: str, line: int) -> bool:
        # torch checks that the base of a power is not negative; for a number read from a tensor only the run can tell.
        return True if self.text is None else bool(self.decide())

    def guard_int(self, file: str, line: int) -> int:
        return int(self.decide())

    def int_(self) -> int:
        return int(self.decide())

    def float_(self) -> float:
        return float(self.decide())

    def decide(self) -> float | bool:
        """Its value, which is guarded."""
        if not self.world.is_mine or not isinstance(self.node, torch.fx.Node):
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

    def eager(self) -> Any:
        """The number that eager has there, which is guarded."""
        return self.cls(self.decide())

    def __str__(self) -> str:
        if not self.world.is_mine:
            return repr(self.value)
        # By the frame above torch's own `__repr__`: what a program makes of the text, a name of an entry say, it may keep.
        if self.integer or not sys._getframe(2).f_code.co_filename.startswith((TORCH, OURS)):
            return repr(self.decide())
        return f"<{self.text or 'number of a tensor'}>"

    __repr__ = __str__
    _graph_repr = __str__

    def computed(self, fn: Callable[..., Any], *others: Scalar) -> Scalar:
        """What one of `FORMS` gives of it and others."""
        of = (self, *others)
        texts = [each.text for each in of]
        known, boolean = None not in texts, fn in COMPARISONS
        is_given = known or not others
        # Numbers of tensors have no value: any will do, since `_decide` refuses to tell it.
        value: float | bool = _value_of(fn, of) if is_given else False if boolean else 1.0
        if not self.world.is_mine:
            return self.fixed(value, boolean=boolean)
        # Of constants, as the outcome of a comparison is one in arithmetic, there is nothing to compute in the graph.
        nodes = [each.node for each in of]
        words = FORMS[fn].format(*texts)
        made = Scalar(
            self.world,
            text=None if not known else words if fn in CALLS else f"({words})",
            value=value,
            node=self.world.call(fn, *nodes) if any(isinstance(node, torch.fx.Node) for node in nodes) else value,
            boolean=boolean,
            integer=type(value) is int,
            is_numpys=any(each.is_numpys for each in of) and fn not in FUNCTIONS,
        )
        if made.integer:
            note_bits(made.node, fn, nodes)
        is_partial = fn in PARTIAL and not (fn in DIVISIONS and not isinstance(nodes[-1], torch.fx.Node))
        if is_partial or (type(value) is float and any(map(may_exceed_floats, nodes))):
            self.world.note_partial(made.text, made.node)
        return made

    def pos(self) -> Scalar:
        return self

    def sym_float(self) -> Scalar:
        return self.computed(float) if self.integer else self

    def round(self, ndigits: Any = None) -> Scalar:
        """As `round` does; digits before the point are all that an integer loses."""
        if self.integer and (ndigits is None or ndigits >= 0):
            return self
        digits = guarded_value(ndigits)
        if self.text is None or self.is_numpys:  # whose floats round in another way
            return self.fixed(round(self.cls(self.decide()), digits))
        return self.computed(round, Scalar(self.world, text=repr(digits), value=digits, node=digits))


def _value_of(fn: Callable[..., Any], of: tuple[Scalar, ...]) -> float | bool:
    try:
        found: float | bool = fn(*(each.value for each in of))
    except NOT_COMPUTED as error:
        # The program may handle it, and go another way where a number can be computed: that each call asks.
        if isinstance(error, ZeroDivisionError) and fn in DIVISIONS:
            of[-1].computed(operator.eq, of[-1].wrap_int(0)).decide()
        else:
            for each in of:
                each.decide()
        raise
    return found


def _install(name: str, fn: Callable[..., Any]) -> None:
    def method(self: Scalar, *others: Scalar) -> Scalar:
        return self.computed(fn, *others)

    def needing(self: Scalar, *others: Scalar) -> Scalar:
        found = fn(self.decide(), *(each.decide() for each in others))
        return self.fixed(found, boolean=type(found) is bool)

    setattr(Scalar, name, method if fn in FORMS else needing)


setattr(Scalar, "str", Scalar.__str__)  # torch's name for it; as a `def` it would hide the type in the class  # noqa: B010
_METHODS = {
    **{fn.__name__: fn for fn in FORMS if fn not in CALLS - {abs}},
    "float_truediv": operator.truediv,
    "int_truediv": operator.truediv,
    "int_floordiv": operator.floordiv,
    "float_pow": operator.pow,
    "pow_by_natural": operator.pow,
    **{name: getattr(math, name) for name in ("floor", "ceil", "trunc")},
    # Of these no recording computes the value.
    **{f"bitwise_{name}": getattr(operator, f"{name}_") for name in ("and", "or")},
    **{fn.__name__: fn for fn in (operator.lshift, operator.rshift, float.is_integer)},
    "and": operator.and_,
    "or": operator.or_,
    "bitwise_xor": operator.xor,
    "sym_not": operator.not_,
    "sym_min": min,
    "sym_max": max,
}
"""What torch calls of a symbolic number."""
for _name, _fn in _METHODS.items():
    _install(_name, _fn)


def symbolic(scalar: Scalar) -> torch.SymFloat | torch.SymInt:
    """The number Python sees for `scalar`."""
    return torch.SymInt(scalar) if scalar.integer else torch.SymFloat(scalar)


def given_number(world: ScalarWorld, name: str, value: Any, node: torch.fx.Node) -> torch.SymFloat | torch.SymInt:
    """What stands for a number that is an input called `name`."""
    known = as_pythons(value)
    is_numpys = known is not value
    return symbolic(Scalar(world, text=name, value=known, node=node, integer=type(known) is int, is_numpys=is_numpys))


def unguarded_value(number: Any) -> Any:
    """What a number is in this call; nothing is guarded."""
    scalar = scalar_of(number)
    return number if scalar is None else scalar.value


def guarded_value(value: Any) -> Any:
    """A symbolic number as it is in this call, which is guarded; anything else as it is."""
    scalar = scalar_of(value)
    if scalar is None:
        return value
    return bool(value) if scalar.boolean else int(value) if scalar.integer else float(value)


def scalar_of(value: object) -> Scalar | None:
    """The node behind a symbolic number of ours, or None."""
    if isinstance(value, SYMBOLS):
        node = value.node
        if isinstance(node, Scalar):
            return node
    return None
