"""Saved values that nobody else can see: which they are, when a backward may overwrite them, when they die."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from wrap.aot.oracle import alike, boxed, numbers, wrapped


class Masked(torch.autograd.Function):
    """A relu that saves its mask."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        mask = x > 0
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (mask,) = ctx.saved_tensors
        return gradient * mask


def two() -> list[Any]:
    return [numbers(2, 3, grad=True), numbers(2, 3, grad=True)]


def donated_and_saved(function: Any) -> tuple[int, int]:
    node = wrapped(function, two).plan.node
    return len(node.donated), node.saved


def test_W40_a_mask_is_donated_and_what_others_see_is_not() -> None:
    assert donated_and_saved(lambda x, w: [Masked.apply(x) + w]) == (1, 1)
    assert donated_and_saved(lambda x, w: [x * w]) == (0, 2)  # activations from outside
    assert donated_and_saved(lambda x, w: [(x + w).sigmoid()]) == (0, 1)  # a result
    assert donated_and_saved(lambda x, w: [x.t() @ w]) == (0, 2)  # views of inputs
    assert donated_and_saved(lambda x, w: [(x + w).sin().exp().sum()]) == (2, 2)


def spoiling(module: Any, inputs: Sequence[Any], donated: tuple[int, ...]) -> Any:
    """A backward that overwrites what was donated once it has run."""
    run = boxed(module, inputs)

    def spoil(args: list[Any]) -> Any:
        given = [args[k] for k in donated]
        gradients = run(args)
        for value in given:
            value.fill_(float("nan"))
        return gradients

    return spoil


def product(x: Any, w: Any) -> Any:
    return [((x + w).sin() * 3).exp().sum()]


@pytest.mark.parametrize("keeps", list(itertools.product([False, True], repeat=3)))
def test_Wplus9_the_graph_can_be_kept_whatever_was_donated(keeps: tuple[bool, ...]) -> None:
    compiled: list[str] = []

    def plain(module: Any, inputs: Any) -> Any:
        compiled.append("kept")
        return boxed(module, inputs)

    def last(module: Any, inputs: Any, donated: tuple[int, ...]) -> Any:
        compiled.append("last")
        assert donated
        return spoiling(module, inputs, donated)

    call = wrapped(product, two, backward=plain, donating=last)
    told = []
    for run in (lambda args: product(*args), call):
        x, w = two()
        (y,) = run([x, w])
        for keep in keeps * 2:
            y.backward(retain_graph=keep)
            if not keep:
                with pytest.raises(RuntimeError, match="second time"):
                    y.backward()
                (y,) = run([x, w])
        told.append((x.grad, w.grad))
    for eager, ours in zip(*told, strict=True):
        torch.testing.assert_close(ours, eager)
    assert len(compiled) == len(set(compiled)) <= 2


def test_W40_what_passed_through_hooks_is_not_overwritten() -> None:
    kept: list[Any] = []

    def pack(value: torch.Tensor) -> torch.Tensor:
        kept.append(value)
        return value

    call = wrapped(product, two, donating=spoiling)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        (y,) = call(two())
    y.backward()
    assert kept and not any(bool(value.isnan().any()) for value in kept)


def test_W40_saved_tensors_die_inside_the_backward() -> None:
    alive: list[bool] = []
    saved: list[Any] = []

    def watched(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            saved[:] = [weakref.ref(value.untyped_storage()) for value in args[:-1]]
            args.clear()
            alive[:] = [ref() is not None for ref in saved]
            return [alike(1, 2, 3)] * 2

        del run
        return spy

    call = wrapped(product, two, backward=watched)
    call(two())[0].backward()
    assert alive == [False] * len(alive) and alive
    (y,) = call(two())
    y.backward(retain_graph=True)
    assert any(alive)


def test_W36_a_gradient_dies_once_the_backward_has_emptied_its_list() -> None:
    alive: list[bool] = []

    def watched(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            gradient = weakref.ref(args[-1])
            gradients = run(args)
            alive.append(gradient() is not None)
            return gradients

        return spy

    call = wrapped(lambda x, w: [x * w], two, backward=watched)
    (call(two())[0] * 2).sum().backward()
    assert alive == [not hasattr(torch.autograd.Function, "boxed_grads_call")]
