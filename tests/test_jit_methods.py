"""Jitted methods: overridden and called by super(), of copies, of classes; each object runs its own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same

CALLS = 4


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    @treeplay.jit(lower="aten", on_refusal="raise")
    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor - 1


class JittedOverride(Scale):
    @treeplay.jit(lower="aten", on_refusal="raise")
    def run(self, x: torch.Tensor) -> torch.Tensor:
        return super().run(x) * 10


class PlainOverride(Scale):
    def run(self, x: torch.Tensor) -> torch.Tensor:
        return super().run(x) * 10


class OverriddenTwice(JittedOverride):
    @treeplay.jit(lower="aten", on_refusal="raise")
    def run(self, x: torch.Tensor) -> torch.Tensor:
        return super().run(x) - super(JittedOverride, self).run(x)


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (JittedOverride, lambda y: y * 10),
        (PlainOverride, lambda y: y * 10),
        (OverriddenTwice, lambda y: y * 10 - y),
    ],
)
def test_an_override_stays_what_is_called_after_it_has_called_super(cls: Any, expected: Callable[[Any], Any]) -> None:
    scale = cls(3.0)
    for call in range(CALLS):
        x = torch.tensor([1.0 + call])
        assert_same(scale.run(x), expected(x * 3.0 - 1))


def test_what_super_calls_is_replayed_too() -> None:
    scale = PlainOverride(3.0)
    for _ in range(CALLS):
        scale.run(torch.ones(1))
    assert super(PlainOverride, scale).run.statistics().replays == CALLS - 1


class Copying(Scale):
    def __copy__(self) -> Copying:
        new = Copying.__new__(Copying)
        new.__dict__.update(self.__dict__)
        return new


@pytest.mark.parametrize(
    ("cls", "copied"),
    [
        (Scale, copy.copy),
        (Copying, copy.copy),
        (PlainOverride, copy.copy),
        (PlainOverride, copy.deepcopy),
        (PlainOverride, lambda value: pickle.loads(pickle.dumps(value))),
    ],
)
def test_a_copy_runs_on_itself(cls: Any, copied: Callable[[Any], Any]) -> None:
    first = cls(2.0)
    for _ in range(3):
        first.run(torch.ones(1))
    second = copied(first)
    second.factor = 5.0
    for call in range(CALLS):
        x = torch.tensor([1.0 + call])
        expected = cls(5.0).run(x)
        assert_same(second.run(x), expected)
    assert_same(first.run(torch.ones(1)), cls(2.0).run(torch.ones(1)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1))

    @treeplay.jit(lower="aten", on_refusal="raise")
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.mul_(2).add_(x)
        return self.total - x


def test_a_module_with_a_jitted_forward_can_be_copied() -> None:
    first = Net()
    for _ in range(3):
        first(torch.ones(1))
    second = copy.deepcopy(first)
    for _ in range(3):
        second(torch.ones(1))
    assert list(first.state_dict()) == ["total"]
    assert (first.total.item(), second.total.item()) == (7.0, 63.0)


def test_a_method_that_an_object_got_of_its_own_goes_before_the_jitted_one() -> None:
    scale = Scale(2.0)
    for _ in range(3):
        scale.run(torch.ones(1))
    scale.run = lambda x: x * 7  # type: ignore[method-assign]
    assert_same(scale.run(torch.ones(1)), torch.full((1,), 7.0))
    del scale.run
    assert_same(scale.run(torch.ones(1)), torch.ones(1))


class OfTheClass:
    factor = 3.0

    @classmethod
    @treeplay.jit(lower="aten", on_refusal="raise")
    def inner(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.factor - 1

    @treeplay.jit(lower="aten", on_refusal="raise")
    @classmethod
    def outer(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.factor - 2

    @staticmethod
    @treeplay.jit(lower="aten", on_refusal="raise")
    def static(x: torch.Tensor) -> torch.Tensor:
        return x * 3 - 3

    @treeplay.jit(lower="aten", on_refusal="raise")
    @staticmethod
    def outer_static(x: torch.Tensor) -> torch.Tensor:
        return x * 3 - 4


class OfAnother(OfTheClass):
    factor = 5.0


@pytest.mark.parametrize(("name", "less"), [("inner", 1), ("outer", 2), ("static", 3), ("outer_static", 4)])
def test_class_and_static_methods_are_replayed_for_each_class(name: str, less: int) -> None:
    for call in range(CALLS):
        for owner in (OfTheClass, OfAnother, OfTheClass()):
            factor = 3.0 if "static" in name else owner.factor  # type: ignore[attr-defined]
            x = torch.tensor([1.0 + call])
            assert_same(getattr(owner, name)(x), x * factor - less)
    assert getattr(OfTheClass, name).statistics().replays >= 2 * CALLS
