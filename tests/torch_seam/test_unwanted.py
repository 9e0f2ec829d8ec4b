"""What is asked of autograd without a public name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from treeplay.torch_seam.aot import unwanted_inputs

seen: list[tuple[int, ...]] = []


class Asks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scale: float, x: torch.Tensor, constant: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return scale * x - constant / y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        seen.append(unwanted_inputs(ctx))
        return None, gradient, None, gradient


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize(("wanted", "unwanted"), [([0], (3,)), ([1], (1,)), ([0, 1], ())])
def test_a_backward_knows_which_gradients_nobody_asked_for(wanted: Any, unwanted: Any, is_leaf: bool) -> None:
    def ends() -> tuple[torch.Tensor, list[torch.Tensor]]:
        leaves = [torch.full((2,), k + 1.0, requires_grad=True) for k in range(2)]
        x, y = leaves if is_leaf else [leaf * 3 for leaf in leaves]
        result: torch.Tensor = Asks.apply(2.0, x, torch.ones(2), y)  # type: ignore[no-untyped-call]
        return result.sum(), [leaves[k] for k in wanted]

    seen.clear()
    result, inputs = ends()
    torch.autograd.grad(result, inputs)
    result, inputs = ends()
    result.backward(inputs=inputs)
    result, _ = ends()
    result.backward()
    assert seen == [unwanted, unwanted, ()]
