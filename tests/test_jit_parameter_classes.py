"""Tensors of classes that are derived from those of parameters: plain ones to operators, not to Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import Twins, jit, training
from support.follows import Story, follows

Tensor = torch.Tensor


class Plain(nn.Parameter):
    factor = 2.0

    def scaled(self) -> Tensor:
        return self * self.factor - 1


class Tagged(nn.Parameter):
    """As geoopt makes them: with an attribute, past the constructor of `Parameter`."""

    tag: Any

    def __new__(cls, data: Tensor, requires_grad: bool = True, tag: Any = 2.0) -> Any:
        made: Any = Tensor._make_subclass(cls, data, requires_grad)
        made.tag = tag
        return made


class Bare(Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


@pytest.mark.parametrize("cls", [Plain, Tagged])
def test_a_step_trains_them(cls: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].weight = cls(model[0].weight.detach())
    pair = Twins(training, model, torch.optim.AdamW(model.parameters(), lr=0.05))
    pair.calls(6, lambda: (torch.randn(4, 3), torch.randn(4, 2)))
    assert type(pair.owners[0][0].weight) is cls and pair.statistics.replays == 5


def test_the_caller_differentiates_them() -> None:
    model = nn.Linear(3, 2)
    model.weight = Plain(model.weight.detach())
    pair = Twins(lambda net: net, model)
    for _ in range(4):
        pair.call(torch.randn(4, 3)).square().sum().backward()
        pair.eager_owners[0].zero_grad()
        pair.owners[0].zero_grad()
    assert pair.step.statistics().replays == 3


WAYS: dict[str, Callable[[Any, Tensor], Any]] = {
    "itself": lambda p, x: p,
    "written": lambda p, x: p.mul_(1.5),
    "a view": lambda p, x: p[1:].t(),
    "detached": lambda p, x: p.detach(),
    "data": lambda p, x: p.data * 2 - x,
    "a sum": lambda p, x: x - p,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [Plain, Tagged, lambda t: t.as_subclass(Bare)], ids=["Plain", "Tagged", "Bare"])
def test_results_are_of_the_classes_that_they_are_of_in_eager(make: Any, way: str) -> None:
    mine, theirs = (make(torch.full((3, 3), 2.0)) for _ in range(2))

    @torch.no_grad()
    def program(p: Any, x: Tensor) -> Any:
        return WAYS[way](p, x)

    jitted = jit(lambda x: program(mine, x))
    for at in range(4):
        x = torch.full((3, 3), float(at))
        found, expected = jitted(x), program(theirs, x)
        assert (
            type(found) is type(expected) and torch.equal(found, expected) and (found is mine) is (expected is theirs)
        )
    assert jitted.statistics().replays == 3


def test_an_argument_is_of_its_class() -> None:
    def program(x: Tensor) -> Tensor:
        return (x * 3 if isinstance(x, Plain) else x - 5).detach()

    jitted = jit(program)
    for make in (Plain, torch.clone, Plain, nn.Parameter, Plain):
        for _ in range(3):
            x = make(torch.randn(3))
            assert torch.equal(jitted(x), program(x))
    assert jitted.statistics().replays == 12


@follows()
def test_a_parameter_of_another_class() -> Story:
    held: list[Any] = [Plain(torch.ones(3))]
    yield lambda x: x * held[0].detach() - (2 if isinstance(held[0], Plain) else 1)
    held[0] = nn.Parameter(torch.ones(3))
    yield
    held[0] = Plain(torch.ones(3) * 2)
    yield


@follows()
def test_what_the_class_and_the_parameter_have() -> Story:
    class Own(Tagged):
        factor = 2.0

    own = Own(torch.ones(3))
    yield lambda x: x * own.detach() * own.factor - own.tag
    own.tag = 3.0
    yield
    Own.factor = 5.0
    yield


@follows()
def test_a_module_that_hangs_on_a_parameter_is_state() -> Story:
    held = [Tagged(torch.ones(3, 3), tag=nn.Linear(3, 3))]

    def program(x: Tensor) -> Tensor:
        held[0].tag.calls = getattr(held[0].tag, "calls", 0) + 1
        return (held[0].tag(x @ held[0]) - held[0].tag.calls).detach()

    yield program, lambda: (held[0], *held[0].tag.parameters(), held[0].tag.calls)
    with torch.no_grad():
        held[0].tag.weight.mul_(2)
    yield
    held[0].tag = nn.Linear(3, 3, bias=False)
    yield


class Slotted(nn.Parameter):
    __slots__ = ("gain",)
    gain: Any

    def __new__(cls, data: Tensor, requires_grad: bool = True, gain: Any = 2.0) -> Any:
        made: Any = Tensor._make_subclass(cls, data, requires_grad)
        made.gain = gain
        return made


class Hidden(Slotted):
    @property
    def gain(self) -> Any:  # type: ignore[override]
        return Slotted.gain.__get__(self) + 1  # type: ignore[attr-defined]

    @gain.setter
    def gain(self, value: Any) -> None:
        Slotted.gain.__set__(self, value)  # type: ignore[attr-defined]


@follows(refused="whose class has the slot `gain`")
def test_a_parameter_with_a_slot() -> Story:
    own = Slotted(torch.ones(3))
    yield lambda x: (x * own * own.gain - 1).detach()
    own.gain = 3.0
    yield


def test_an_argument_with_a_slot() -> None:
    jitted = treeplay.jit(program := lambda p, x: x * p.gain - 1, lower="aten", on_refusal="eager")
    for gain in (2.0, 2.0, 2.0, 5.0, 5.0, 2.0):
        p, x = Slotted(torch.randn(3), gain=gain), torch.randn(3)
        assert torch.equal(jitted(p, x), program(p, x))


@pytest.mark.parametrize("cls", [Slotted, Hidden])
@follows()
def test_what_a_slot_holds_of_a_parameter_that_no_operator_reads(cls: Any) -> Story:
    held = [cls(torch.ones(3))]
    yield lambda x: x * getattr(held[0], "gain", 0.5) - 1
    held[0].gain = 3.0
    yield
    if cls is Slotted:
        del held[0].gain
        yield
    held[0] = cls(torch.ones(3), gain=7.0)
    yield


@follows()
def test_what_the_program_puts_into_a_slot() -> Story:
    own = Slotted(torch.ones(3))

    def program(x: Tensor) -> Tensor:
        own.gain = x * own.gain - 1
        return own.gain * 2

    yield program, lambda: own.gain
    own.gain = 3.0
    yield


@follows(refused="is not plain memory with a shape and strides")
def test_a_class_that_hooks_functions_one_day() -> Story:
    class Own(nn.Parameter):
        pass

    def negated(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
        return -made if func is torch.Tensor.mul else made

    own = Own(torch.ones(3))
    yield lambda x: (x * own).detach() - 1
    Own.__torch_function__ = classmethod(negated)  # type: ignore[assignment, method-assign]
    yield


@pytest.mark.parametrize("make", [Plain, Tagged, lambda x: x.as_subclass(Bare)], ids=["Plain", "Tagged", "Bare"])
def test_one_that_the_program_makes_is_no_result_of_a_replay(make: Any) -> None:
    jitted = jit(lambda x: make(x * 2))
    with pytest.raises(treeplay.Refusal):
        for _ in range(3):
            assert type(jitted(torch.ones(3))) is type(make(torch.ones(3)))


def test_layers_take_the_large_operator_with_them_too() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True).eval()
    layer.linear1.weight = Plain(layer.linear1.weight.detach())
    step = torch.no_grad()(lambda x: layer(x))
    jitted = jit(step)
    for _ in range(4):
        x = torch.randn(4, 7, 8)
        assert torch.equal(jitted(x), step(x))
    assert jitted.statistics().replays == 3
