"""Values of every kind that an attribute, a closure or a dict gives a program, replaced between calls."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import math
import operator
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support import state_of
from support.follows import Holder, Story, follows

Tensor = torch.Tensor


class Mode(enum.Enum):
    ADD = 1
    TAKE = 2


class Flags(enum.Flag):
    NEGATED = enum.auto()
    DOUBLED = enum.auto()


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.factor - 1


class Shift(Scale):
    def __call__(self, x: Tensor) -> Tensor:
        return x - self.factor


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 2 * ctx.saved_tensors[0]


class Square(Cube):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 5 - ctx.saved_tensors[0]


def doubled(x: Tensor) -> Tensor:
    return x * 2 - 1


def halved(x: Tensor, by: float = 2.0) -> Tensor:
    return x / by + 1


def _times(value: Any, x: Tensor) -> Tensor:
    return x * float(value) - 1


def _apply(value: Any, x: Tensor) -> Tensor:
    return value(x) * 2 - 1


def _length(value: Any, x: Tensor) -> Tensor:
    return x * len(str(value)) - 1


VALUES: dict[str, tuple[Any, Any, Callable[[Any, Tensor], Tensor]]] = {
    "int": (2, 3, _times),
    "big int": (10**20, 10**20 + 10**10, lambda v, x: x * (v - 10**20) - 1),
    "float": (2.0, 3.0, _times),
    "bool": (True, False, lambda v, x: x * 2 if v else x - 1),
    "complex": (1 + 2j, 1 + 3j, lambda v, x: x * v.imag - v.real),
    "string": ("relu", "tanh", lambda v, x: getattr(torch, v)(x) - 1),
    "bytes": (b"a", b"b", lambda v, x: x - v[0]),
    "nothing": (None, 2.0, lambda v, x: x - 1 if v is None else x * v),
    "ellipsis": (..., None, lambda v, x: x[v] * 2 - x.dim()),
    "tuple": ((2.0, 3.0), (2.0, 5.0), lambda v, x: x * v[0] - v[1]),
    "nested tuple": ((2.0, (3.0, "a")), (2.0, (3.0, "bc")), lambda v, x: x * v[1][0] - len(v[1][1])),
    "frozenset": (frozenset({1}), frozenset({1, 2}), lambda v, x: x * 2 if 2 in v else x - 1),
    "float64 of NumPy": (np.float64(2.0), np.float64(3.0), lambda v, x: x * v - 1),
    "float32 of NumPy": (np.float32(2.0), np.float32(3.0), lambda v, x: x * float(v) - 1),
    "int64 of NumPy": (np.int64(2), np.int64(3), lambda v, x: x * int(v) - 1),
    "bool of NumPy": (np.bool_(True), np.bool_(False), lambda v, x: x * 2 if v else x - 1),
    "string of NumPy": (np.str_("relu"), np.str_("tanh"), lambda v, x: getattr(torch, v)(x) - 1),
    "dtype of NumPy": (np.dtype("float32"), np.dtype("float64"), lambda v, x: x * v.itemsize - 1),
    "array of no dimension": (np.array(2.0), np.array(3.0), lambda v, x: x * float(v) - 1),
    "Fraction": (fractions.Fraction(1, 2), fractions.Fraction(1, 3), _times),
    "Decimal": (decimal.Decimal("0.5"), decimal.Decimal("0.25"), _times),
    "slice": (slice(0, 2), slice(1, 3), lambda v, x: x[v] * 2 - 1),
    "slice of columns": (slice(None, None, 2), slice(None, None, 1), lambda v, x: x[:, v].sum() * 2 - 1),
    "range": (range(3), range(1, 3), lambda v, x: functools.reduce(lambda a, k: a * (k + 1) - 1, v, x)),
    "date": (datetime.date(2000, 1, 2), datetime.date(2000, 1, 3), lambda v, x: x * v.day - 1),
    "duration": (datetime.timedelta(seconds=2), datetime.timedelta(seconds=3), lambda v, x: x * v.total_seconds() - 1),
    "path": (pathlib.PurePath("a/b"), pathlib.PurePath("a/bcd"), lambda v, x: x * len(v.name) - 1),
    "pattern": (re.compile("a+"), re.compile("a"), lambda v, x: x * len(v.match("aaa").group()) - 1),
    "member of an enum": (Mode.ADD, Mode.TAKE, lambda v, x: x + 1 if v is Mode.ADD else x - 1),
    "value of an enum": (Mode.ADD, Mode.TAKE, lambda v, x: x * v.value - 1),
    "flags": (Flags.NEGATED, Flags.DOUBLED, lambda v, x: -x if Flags.NEGATED in v else x * 2),
    "class": (Scale, Shift, lambda v, x: v(3.0)(x) - 1),
    "class of a module": (nn.Tanh, nn.Sigmoid, lambda v, x: v()(x) - 1),
    "isinstance of a class": (int, float, lambda v, x: x * 2 if isinstance(1.0, v) else x - 1),
    "function": (doubled, halved, _apply),
    "lambda": (lambda x: x * 3, lambda x: x - 3, _apply),
    "function of torch": (torch.sigmoid, torch.tanh, _apply),
    "functional": (F.silu, F.gelu, _apply),
    "method of a tensor": (Tensor.sigmoid, Tensor.tanh, _apply),
    "function of math": (math.sin, math.cos, lambda v, x: x * v(1.0) - 1),
    "function of NumPy": (np.sin, np.cos, lambda v, x: x * float(v(1.0)) - 1),
    "function of operator": (operator.add, operator.sub, lambda v, x: v(x * 2, 1)),
    "builtin": (min, max, lambda v, x: x * v(2, 3) - 1),
    "operator": (torch.ops.aten.sin, torch.ops.aten.cos, _apply),
    "overload": (torch.ops.aten.sin.default, torch.ops.aten.cos.default, _apply),
    "partial": (functools.partial(halved, by=2.0), functools.partial(halved, by=4.0), _apply),
    "callable object": (Scale(2.0), Scale(3.0), _apply),
    "bound method": (Scale(2.0).__call__, Scale(3.0).__call__, _apply),
    "autograd.Function": (Cube, Square, lambda v, x: v.apply(x) - 1),
    "apply of an autograd.Function": (Cube.apply, Square.apply, _apply),
    "module": (nn.Tanh(), nn.Sigmoid(), _apply),
    "attrgetter": (operator.attrgetter("mT"), operator.attrgetter("data"), lambda v, x: v(x * 2) - 1),
    "methodcaller": (operator.methodcaller("sin"), operator.methodcaller("cos"), _apply),
    "dtype": (torch.float64, torch.float16, lambda v, x: x.to(v) - 1),
    "device": (torch.device("cpu"), torch.device("meta"), lambda v, x: x * 2 if v.type == "cpu" else x - 1),
    "memory format": (torch.contiguous_format, torch.preserve_format, lambda v, x: x * (2 if "cont" in str(v) else 3)),
    "size": (torch.Size([4, 3]), torch.Size([3, 4]), lambda v, x: x.reshape(v) * 2 - 1),
    "negative zero": (0.0, -0.0, lambda v, x: x.abs() / (torch.zeros(3) * v)),
    "not a number": (1.0, math.nan, lambda v, x: x * v - 1),
    "int that equals a float": (2, 2.0, lambda v, x: (x * 4).to(torch.int64) * v),
    "int that equals a bool": (1, True, lambda v, x: x * 2 if v is True else x - 1),
    "zero that equals False": (0, False, lambda v, x: x * 2 if v is False else x - 1),
}
WHERE = ["attribute", "closure", "dict", "tuple"]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("first", "second", "use"), VALUES.values(), ids=VALUES)
@follows()
def test_a_value_that_is_replaced(first: Any, second: Any, use: Callable[[Any, Tensor], Tensor], where: str) -> Story:
    value = first
    holder, table = Holder(first), {"value": (first,)}

    def program(x: Tensor) -> Tensor:
        if where == "closure":
            return use(value, x)
        if where == "attribute":
            return use(holder.value, x)
        return use(table["value"][0], x) if where == "dict" else use(holder.value[0], x)

    holder.value = (first,) if where == "tuple" else first
    yield program
    for other in (second, first):
        value = other
        holder.value = (other,) if where == "tuple" else other
        table["value"] = (other,)
        yield


@follows()
def test_the_arguments_of_a_partial() -> Story:
    holder, options = Holder(functools.partial(halved, by=2.0)), Scale(2.0)
    bound = functools.partial(lambda scale, x, *, more: scale(x) * more[0], options, more=[3.0])
    yield lambda x: holder.value(x) * 2 - bound(x)
    holder.value.keywords["by"] = 5.0
    yield
    options.factor = 7.0
    yield
    bound.keywords["more"][0] = 4.0
    yield


@follows()
def test_numbers_of_objects_that_stand_in_a_value() -> Story:
    steps = (Scale(2.0), Shift(3.0), [Scale(4.0)], {"last": Shift(5.0)})

    def use(x: Tensor) -> Tensor:
        return steps[3]["last"](steps[2][0](steps[1](steps[0](x))))

    yield use
    steps[0].factor = 3.0
    yield
    steps[2][0].factor = 6.0
    yield
    steps[3]["last"].factor = 7.0
    yield


@pytest.mark.parametrize("kind", [np.float64, np.float32, float, int])
@follows(grad=True)
def test_the_learning_rate_of_an_optimizer(kind: Any) -> Story:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=kind(1))

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    yield step, lambda: list(state_of(model))
    optimizer.param_groups[0]["lr"] = kind(2)
    yield
    optimizer.param_groups[0]["lr"] = kind(3)
    yield


@follows()
def test_what_a_buffer_holds_and_where_it_is_read() -> Story:
    text, data = io.StringIO("2 3"), io.BytesIO(b"4")
    yield lambda x: x * float(text.getvalue().split()[0]) - text.tell() - int(data.getvalue())
    text.write("5")
    yield
    data.seek(0)
    data.write(b"7")
    yield
    text.seek(0)
    yield


@follows()
def test_whether_an_array_may_be_written() -> Story:
    array = np.arange(3.0)
    yield lambda x: x * (2 if array.flags.writeable else 3) - 1
    array.setflags(write=False)
    yield


@follows(grad=True, calls=3, recordings=1)
def test_a_learning_rate_that_numpy_computes_on_each_step() -> Story:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 + 0.5 * np.cos(step / 10))

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    yield step, lambda: list(state_of(model))
    for _ in range(12):
        schedule.step()
        yield


@follows(grad=True)
def test_an_autograd_function_whose_numbers_change() -> Story:
    class Scaled(torch.autograd.Function):
        factor = 2.0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * Scaled.factor

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient * Scaled.factor - 1

    weight = torch.ones(3, requires_grad=True)

    def step(x: Tensor) -> Tensor:
        weight.grad = None
        Scaled.apply(weight * x).sum().backward()
        return weight.grad * 2 - 1  # type: ignore[operator]

    yield step
    Scaled.factor = 3.0
    yield


@dataclasses.dataclass(frozen=True, eq=False)
class ByAddress:
    n: int = 1


@pytest.mark.parametrize(
    "program",
    [
        lambda x, known, one: x * known.get(one, 3) - 1,
        lambda x, known, one: x * (2 if one in [*known] else 3) - 1,
        lambda x, known, one: x * (2 if one == next(iter(known)) else 3) - 1,
    ],
    ids=["key", "member", "equal"],
)
@follows()
def test_a_frozen_dataclass_that_is_equal_to_itself_alone(program: Callable[..., Tensor]) -> Story:
    at = Holder(ByAddress())
    known = {at.value: 2}
    yield lambda x: program(x, known, at.value)
    at.value = ByAddress()
    yield
    at.value = next(iter(known))
    yield
