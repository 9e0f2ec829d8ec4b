"""Tensors in a container that no operator of the run read: another one of the kind may take their place."""

from __future__ import annotations

import collections
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay

Tensor = torch.Tensor
X = torch.tensor([1.0, -2.0])


class Derived(dict[str, Any]):
    """A dictionary whose entries are compared by a function."""


HOLDERS: dict[str, Callable[[], Any]] = {
    "dict": lambda: {"gain": 2.0, "last": torch.zeros(2, 1)},
    "OrderedDict": lambda: collections.OrderedDict(gain=2.0, last=torch.zeros(2, 1)),
    "class derived from dict": lambda: Derived(gain=2.0, last=torch.zeros(2, 1)),
    "list": lambda: [2.0, torch.zeros(2, 1)],
    "SimpleNamespace": lambda: vars(types.SimpleNamespace(gain=2.0, last=torch.zeros(2, 1))),
}


def jitted(program: Callable[..., Any]) -> Any:
    return treeplay.jit(program, lower="aten", on_refusal="raise")


@pytest.mark.parametrize("name", HOLDERS)
@pytest.mark.parametrize("shape", [(2, 1), (2,)], ids=["other", "like an argument"])
def test_one_that_is_replaced_between_calls_needs_no_new_recording(name: str, shape: tuple[int, ...]) -> None:
    held = HOLDERS[name]()
    first, last = (0, 1) if name == "list" else ("gain", "last")
    held[last] = torch.ones(shape)
    program = jitted(lambda x: x * held[first] - 1)
    for call in range(8):
        assert torch.equal(program(X), X * 2 - 1)
        held[last] = torch.full(shape, float(call))
    assert (program.statistics().recordings, program.statistics().replays) == (1, 7)


def test_what_is_stored_in_every_third_call_does_not_cost_the_others_their_recording() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.calls, self.metrics = 0, dict[str, Tensor]()

        def step(self, x: Tensor) -> Tensor:
            self.metrics["loss"] = x.sum() - 1
            if self.calls % 3 == 0:
                self.metrics["penalty"] = x.cos() - self.calls
            self.calls += 1
            return x * 2 - 1

    trainer, twin = Trainer(), Trainer()
    step = jitted(trainer.step)
    for call in range(30):
        x = X * call
        assert torch.equal(step(x), twin.step(x))
        assert trainer.calls == twin.calls and trainer.metrics.keys() == twin.metrics.keys()
        assert all(map(torch.equal, trainer.metrics.values(), twin.metrics.values()))
    assert step.statistics().recordings == 2 and step.statistics().replays == 28


@pytest.mark.parametrize("times", [0, 3])
def test_one_of_another_shape_is_another_value(times: int) -> None:
    held = {"gain": 2.0, "last": torch.zeros(2, 1)}
    program = jitted(lambda x: x * held["last"].shape[0] - held["gain"])
    program(X)
    for _ in range(times):
        held["last"] = torch.zeros(2, 1)
        assert torch.equal(program(X), X * 2 - 2)
    held["last"] = torch.zeros(3, 1)
    assert torch.equal(program(X), X * 3 - 2)


@pytest.mark.parametrize("times", [0, 1, 2, 5, 60])
@pytest.mark.parametrize("name", HOLDERS)
@pytest.mark.parametrize("replaced", [1, 5])
def test_an_attribute_on_one_that_took_the_place_is_noticed(name: str, times: int, replaced: int) -> None:
    held = HOLDERS[name]()
    first, last = (0, 1) if name == "list" else ("gain", "last")
    program = treeplay.jit(lambda x: x * held[first] - getattr(held[last], "scale", 1), lower="aten")
    program(X)
    for _ in range(replaced):
        held[last] = torch.zeros(2, 1)
        for _ in range(times):
            assert torch.equal(program(X), X * 2 - 1)
    held[last].scale = 5
    assert torch.equal(program(X), X * 2 - 5)
    held[last].scale = 7
    assert torch.equal(program(X), X * 2 - 7)
    del held[last].scale
    assert torch.equal(program(X), X * 2 - 1)


@pytest.mark.parametrize("times", [0, 1, 2, 5])
def test_one_that_took_the_place_may_not_change_either(times: int) -> None:
    held: dict[str, Any] = {"gain": 2.0, "last": torch.zeros(2, 1)}
    program = jitted(lambda x: x.neg() if held["last"].requires_grad else x * held["gain"] - 1)
    program(X)
    for _ in range(times):
        held["last"] = torch.zeros(2, 1)
        for _ in range(3):
            assert torch.equal(program(X), X * 2 - 1)
    held["last"].requires_grad_()
    assert torch.equal(program(X), -X)


@pytest.mark.parametrize("times", [0, 3])
@pytest.mark.parametrize("where", ["both", "state"])
def test_two_that_become_one_are_noticed(times: int, where: str) -> None:
    held, weight = {"one": torch.zeros(2, 1), "other": torch.zeros(2, 1)}, [torch.ones(2, 1)]

    def program(x: Tensor) -> Tensor:
        others = weight[0] if where == "state" else held["other"]
        return x * weight[0].sum() * (2 if held["one"] is others else 3) - 1

    fast = jitted(program)
    fast(X)
    for _ in range(times):
        held["one"], held["other"], weight[0] = torch.zeros(2, 1), torch.zeros(2, 1), torch.ones(2, 1)
        assert torch.equal(fast(X), program(X))
    held["one"] = weight[0] if where == "state" else held["other"]
    assert torch.equal(fast(X), program(X)) and torch.equal(fast(X), X * 4 - 1)
    held["one"] = held["other"] = torch.zeros(2, 1)
    assert torch.equal(fast(X), program(X))


def test_one_that_is_in_a_tuple_too_is_compared_by_identity() -> None:
    mark = torch.zeros(2, 1)
    held: dict[str, Any] = {"mark": mark, "pair": (mark, 2.0)}

    def program(x: Tensor) -> Tensor:
        return x * held["pair"][1] - 1 if held["pair"][0] is held["mark"] else x.neg()

    fast = jitted(program)
    assert torch.equal(fast(X), X * 2 - 1) and torch.equal(fast(X), X * 2 - 1)
    held["mark"] = torch.zeros(2, 1)
    assert torch.equal(fast(X), -X)


def test_an_argument_is_compared_with_what_is_there() -> None:
    held = {"gain": 2.0, "last": torch.zeros(2)}

    def program(x: Tensor) -> Tensor:
        return x * 5 - 1 if x is held["last"] else x.neg() * held["gain"]

    fast = jitted(program)
    for last in (torch.zeros(2), torch.zeros(2), torch.zeros(2)):
        held["last"] = last
        assert torch.equal(fast(X), X * -2)
    assert torch.equal(fast(last), last * 5 - 1)
    held["last"] = X
    assert torch.equal(fast(X), X * 5 - 1) and torch.equal(fast(last), last * -2)


@pytest.mark.parametrize("times", [0, 1, 4])
@pytest.mark.parametrize("what", ["attribute", "gradient", "conj", "key", "member", "default", "weak reference"])
def test_one_that_differs_otherwise_is_another_value(what: str, times: int) -> None:
    held: dict[str, Any] = {"gain": 2.0, "last": torch.zeros(2, 1, dtype=torch.complex64, requires_grad=True)}
    first = held["last"]
    by_tensor, members, reference = {first: 1}, {first}, weakref.ref(first)

    def program(x: Tensor, default: Any = first) -> Tensor:
        last = held["last"]
        is_other = {
            "attribute": lambda: hasattr(last, "scale"),
            "gradient": lambda: last.grad is not None,
            "conj": lambda: last.is_conj(),
            "key": lambda: last not in by_tensor,
            "member": lambda: last not in members,
            "default": lambda: last is not default,
            "weak reference": lambda: last is not reference(),
        }[what]()
        return x.neg() * 5 if is_other else x * 3 - held["gain"]

    fast = treeplay.jit(program, lower="aten")
    for _ in range(times + 1):
        assert torch.equal(fast(X), program(X)) and torch.equal(fast(X), program(X))
        held["last"] = torch.zeros(2, 1, dtype=torch.complex64, requires_grad=True)
    if what == "attribute":
        held["last"].scale = 7.0
    elif what == "gradient":
        held["last"].grad = torch.ones(2, 1, dtype=torch.complex64)
    elif what == "conj":
        held["last"] = torch.zeros(2, 1, dtype=torch.complex64).conj().requires_grad_()
    assert torch.equal(fast(X), program(X)) and torch.equal(fast(X), X * -5)


def test_those_that_were_replaced_are_not_all_kept() -> None:
    held, references = {"gain": 2.0, "last": torch.zeros(2, 1)}, []
    program = jitted(lambda x: x * held["gain"] - 1)
    for _ in range(20):
        program(X)
        references.append(weakref.ref(held["last"]))
        held["last"] = torch.zeros(2, 1)
    assert sum(reference() is not None for reference in references) <= 4
