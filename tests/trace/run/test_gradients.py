"""Gradients of a trace lie as eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from support import jit

Strides = list[tuple[int, ...]]


def _taken_over(program: Callable[[Callable[[], None]], Callable[[], None]]) -> Strides:
    """The strides of the gradient of a layer whose weight has a dimension of one element."""
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(8, 8, 3, groups=8)
    x = torch.randn(2, 8, 8, 8).contiguous(memory_format=torch.channels_last)

    def step() -> None:
        layer.zero_grad()
        layer(x).square().mean().backward()

    return _strides(program(step), layer.weight)


def _copied(program: Callable[[Callable[[], None]], Callable[[], None]]) -> Strides:
    """Of two parameters that are given the gradient which the caller holds: each has to copy it."""
    one, other = (torch.nn.Parameter(torch.full((3, 1, 2), value)) for value in (2.0, 5.0))
    given = torch.empty_strided((3, 1, 2), (2, 1, 1)).copy_(torch.arange(6.0).view(3, 1, 2))

    def step() -> None:
        one.grad = other.grad = None
        (one + other).backward(given)

    return _strides(program(step), one, other)


def _strides(step: Callable[[], None], *parameters: torch.nn.Parameter) -> Strides:
    found = []
    for _ in range(3):
        step()
        found += [parameter.grad.stride() for parameter in parameters if parameter.grad is not None]
    return found


@pytest.mark.parametrize("of", [_taken_over, _copied])
def test_a_gradient_has_the_strides_that_it_has_in_eager(of: Callable[..., Strides]) -> None:
    assert of(jit) == of(lambda step: step)
