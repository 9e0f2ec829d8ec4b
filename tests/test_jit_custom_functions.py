"""Custom autograd functions whose results are views of an input: their backward belongs to each view that is taken of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same, jit

Program = Callable[[torch.Tensor, torch.Tensor], Any]


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


class Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


def reverse(x: torch.Tensor) -> torch.Tensor:
    return Reversed.apply(x)  # type: ignore[no-any-return, no-untyped-call]


PROGRAMS: dict[str, Program] = {
    "a view": lambda x, w: reverse(x),
    "a view of a view": lambda x, w: reverse(x).view(-1)[1:],
    "of a view": lambda x, w: reverse(x.t()),
    "twice": lambda x, w: reverse(reverse(x)[0]),
    "beside another": lambda x, w: (reverse(x), x * w),
    "and used": lambda x, w: (reverse(x)[1], reverse(x) * w),
    "the argument": lambda x, w: Passed.apply(x)[0],  # type: ignore[no-untyped-call]
    "of something new": lambda x, w: reverse(x * w)[0],
}


def _gradients(program: Program, k: int) -> list[torch.Tensor]:
    x, w = (torch.arange(4.0).view(2, 2) + at + k for at in (1, 5))
    x.requires_grad_()
    w.requires_grad_()
    results = program(x * 1 if k % 2 else x, w)
    weighed = [(one * torch.arange(1.0, 1 + one.numel()).view(one.shape)).sum() for one in _each(results)]
    torch.stack(weighed).sum().backward()
    return [gradient for gradient in (x.grad, w.grad) if gradient is not None]


def _each(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_backward_of_a_view_is_the_functions(name: str) -> None:
    program, jitted = PROGRAMS[name], jit(PROGRAMS[name])
    for k in range(6):
        assert_same(_gradients(jitted, k), _gradients(program, k))
    assert jitted.statistics().replays >= 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_backward_of_a_view_is_the_functions_behind_torch_compile(name: str) -> None:
    torch._dynamo.reset()
    program = PROGRAMS[name]
    compiled = torch.compile(program, backend="treeplay", options={"inner": "aten"})
    for k in range(2):
        assert_same(_gradients(compiled, k), _gradients(program, k))


def test_a_hook_on_a_view_of_an_argument_is_refused() -> None:
    """A replay left it out."""

    def hooked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        view = x.view(-1)
        view.register_hook(lambda gradient: gradient * 5)
        return view

    jitted = jit(hooked)
    _gradients(jitted, 0)
    with pytest.raises(treeplay.Refusal, match="register_hook"):
        _gradients(jitted, 0)
