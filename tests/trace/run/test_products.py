"""A product of a batch with one matrix rounds as in eager, in the observed call, in a trace and in a backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from support import assert_same, jit

Tensor = torch.Tensor
Product = Callable[[Tensor, Tensor], Tensor]

PRODUCTS: dict[str, Product] = {
    "@": lambda a, b: a @ b,
    "torch.matmul": torch.matmul,
    "by name": lambda a, b: torch.matmul(input=a, other=b),
    "a method": lambda a, b: a.matmul(b),
    "torch.linalg": torch.linalg.matmul,
    "of what is computed": lambda a, b: (a * 1.5 - 1) @ (b * 0.5),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("sizes", [(3, 1), (1, 3), (3, 3), (0, 1)], ids=str)
def test_a_batch_with_one_matrix(name: str, sizes: tuple[int, int]) -> None:
    product = PRODUCTS[name]
    jitted = jit(lambda a, b: product(a, b))
    for _ in range(12):
        a, b = (torch.randn(size, 3, 3) for size in sizes)
        assert_same(jitted(a, b), product(a, b))
    assert jitted.statistics().replays == 11


@pytest.mark.parametrize("is_inside", [True, False], ids=["its own backward", "the caller's backward"])
@pytest.mark.parametrize("needs", [(True, False), (False, True), (True, True)], ids=str)
def test_gradients_of_a_batch_with_one_matrix(needs: tuple[bool, bool], is_inside: bool) -> None:
    batch, one = torch.randn(3, 3, 3, requires_grad=needs[0]), torch.randn(1, 3, 3, requires_grad=needs[1])

    def step(x: Tensor) -> Tensor:
        loss = ((batch * x) @ (one - x)).square().sum()
        if is_inside:
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach() if is_inside else loss

    jitted = jit(step)
    for _ in range(12):
        x, found = torch.randn(()), []
        for run in (jitted, step):
            batch.grad = one.grad = None
            loss = run(x)
            if not is_inside:
                loss.backward()
            found.append([value.detach() for value in (loss, batch.grad, one.grad) if value is not None])
        assert_same(*found)
    assert jitted.statistics().replays == 11
