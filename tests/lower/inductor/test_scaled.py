"""Scaled sums that a product of matrices enters: Inductor would leave the scale out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import treeplay

Tensor = torch.Tensor


def average(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return total.mul(0.9).add(a @ b, alpha=0.1)


def difference(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.sub(a @ b, total, alpha=3) - torch.add(a @ b, b.sum(), alpha=-2)


def narrow(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.add(total, a.bfloat16() @ b.bfloat16(), alpha=0.25)


@pytest.mark.compile
@pytest.mark.parametrize("program", [average, difference, narrow])
@pytest.mark.parametrize("front", ["jit", "compile"])
def test_the_scale_of_a_sum_counts(program: Any, front: str, device: str) -> None:
    if front == "jit":
        run: Any = treeplay.jit(program, lower="inductor", on_refusal="raise")
    else:
        run = torch.compile(program, backend="treeplay")
    for _ in range(4):
        total, a, b = (torch.randn(shape, device=device) for shape in ((5, 3), (5, 8), (8, 3)))
        torch.testing.assert_close(run(total, a, b), program(total, a, b), rtol=2e-2, atol=2e-2)
