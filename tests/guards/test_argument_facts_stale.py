"""What a program asks of tensors that it is given, besides what their specs say: where they begin, what they are views of,
their place in autograd. Another answer is another recording, and an answer that comes back finds its recording again."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import assert_same, jit

Tensor = torch.Tensor
Make = Callable[[], Tensor]


def plain() -> Tensor:
    return torch.arange(4.0)


def view() -> Tensor:
    return torch.arange(8.0)[:4]


def offset() -> Tensor:
    return torch.arange(-4.0, 4.0)[4:]


def leaf() -> Tensor:
    return torch.arange(4.0).requires_grad_()


def result() -> Tensor:
    return leaf() * 1


def view_of_a_result() -> Tensor:
    return (torch.arange(8.0).requires_grad_() * 1)[:4]


def written() -> Tensor:
    return plain().mul_(1)


def with_hook() -> Tensor:
    made = leaf()
    made.register_hook(lambda gradient: gradient)
    return made


def with_late_hook() -> Tensor:
    made = leaf()
    made.register_post_accumulate_grad_hook(lambda tensor: None)
    return made


def with_gradient() -> Tensor:
    made = leaf()
    made.grad = torch.ones(4)
    return made


def keeping_its_gradient() -> Tensor:
    made = result()
    made.retain_grad()
    return made


FACTS: dict[str, tuple[Callable[[Tensor], Any], Make, Make]] = {
    "_base": (lambda x: x._base is None, plain, view),
    "_base of a result": (lambda x: x._base is None, result, view_of_a_result),
    "shape of the base": (lambda x: x._base is not None and x._base.shape == (8,), view, lambda: torch.arange(9.0)[:4]),
    "_is_view": (lambda x: x._is_view(), plain, view),
    "storage_offset": (lambda x: x.storage_offset() == 0, plain, offset),
    "is_leaf": (lambda x: x.is_leaf, leaf, result),
    "grad_fn": (lambda x: x.grad_fn is None, leaf, result),
    "kind of grad_fn": (lambda x: x.grad_fn.name() == "MulBackward0", result, lambda: leaf() + 1),  # type: ignore[union-attr]
    "output_nr": (lambda x: x.output_nr == 0, lambda: leaf().unbind(0)[0], lambda: leaf().unbind(0)[1]),
    "retains_grad": (lambda x: x.retains_grad, result, keeping_its_gradient),
    "_version": (lambda x: x._version == 0, plain, written),
    "_backward_hooks": (lambda x: not x._backward_hooks, leaf, with_hook),
    "_post_accumulate_grad_hooks": (lambda x: x._post_accumulate_grad_hooks is None, leaf, with_late_hook),
    "grad": (lambda x: x.grad is None, leaf, with_gradient),
    "is_shared": (lambda x: x.is_shared(), plain, lambda: plain().share_memory_()),
    "is_inference": (lambda x: x.is_inference(), plain, lambda: torch.inference_mode()(plain)()),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("is_turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("name", FACTS)
def test_a_fact_of_an_argument(name: str, is_turned: bool) -> None:
    ask, *kinds = FACTS[name]

    def program(x: Tensor) -> Tensor:
        return x * 2 - 1 if ask(x) else x * 3 + 1

    jitted = jit(program)
    for _ in range(2):
        for make in reversed(kinds) if is_turned else kinds:
            for _ in range(3):
                assert_same(jitted(make()), program(make()))
    found = jitted.statistics()
    assert (found.recordings, found.refusals) == (2, 0) and found.replays >= 8


@pytest.mark.parametrize("name", ["_base", "shape of the base", "_is_view", "storage_offset", "is_shared"])
@pytest.mark.parametrize("reads", [False, True], ids=["asked only", "read too"])
def test_the_same_fact_of_state_that_is_replaced(name: str, reads: bool) -> None:
    ask, *kinds = FACTS[name]
    holder = types.SimpleNamespace(t=plain())

    def program(x: Tensor) -> Tensor:
        y = x - holder.t if reads else x
        return y * 2 - 1 if ask(holder.t) else y * 3 + 1

    jitted = jit(program)
    for make in (*kinds, *kinds):
        holder.t = make()
        for _ in range(3):
            assert_same(jitted(plain() + 1), program(plain() + 1))
    assert jitted.statistics().refusals == 0 and jitted.statistics().replays >= 4


def test_which_argument_another_one_is_a_view_of() -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        if x._base is y:
            return x * 2 - 1
        return x * 3 + 1 if x._base is z else x * 5

    jitted = jit(program)
    for which in (0, 1, 2, 0, 1, 2):
        for _ in range(3):
            wholes = [torch.arange(8.0) for _ in range(3)]
            arguments = wholes[which][2:6], wholes[0], wholes[1]
            assert_same(jitted(*arguments), program(*arguments))
    assert jitted.statistics().recordings == 3 and jitted.statistics().refusals == 0


def test_a_view_that_the_program_makes_itself_has_eagers_base() -> None:
    def program(x: Tensor) -> Tensor:
        y = x[1:]
        return y * 2 - 1 if y._base is x else y * 3 + (1 if y._base is x._base else 5)

    jitted = jit(program)
    for make in (plain, view, plain, view):
        for _ in range(3):
            x = make()
            assert_same(jitted(x), program(x))
    assert jitted.statistics().replays >= 8


def test_the_version_of_what_the_program_wrote_is_refused_at_its_line() -> None:
    def program(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + x._version

    jitted = jit(program, on_refusal="eager")
    with pytest.warns(
        UserWarning, match=r"_version: counts what the program itself writes[^$]*return x \+ x\._version"
    ):
        for _ in range(3):
            assert_same(jitted(plain()), program(plain()))


def test_an_explanation_names_the_fact() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 - 1 if x.storage_offset() == 0 else x * 3 + 1

    jitted = jit(program)
    for make in (plain, plain, offset):
        jitted(make())
    assert "storage_offset: 4, recorded with 0" in jitted.explain()
