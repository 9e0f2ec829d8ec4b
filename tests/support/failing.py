"""Programs with an operator that fails on some values: the program, what makes a good argument, and a bad one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F


def positive() -> torch.Tensor:
    x = torch.randn(3, 3)
    return x @ x.T + 3 * torch.eye(3)


def outcome(program: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, or the type and the text of what it raises."""
    try:
        return program(*args)
    except Exception as error:
        return type(error), str(error)


FAILING: dict[str, tuple[Callable[..., Any], Callable[[], Any], Any]] = {
    "cholesky": (lambda x: torch.linalg.cholesky(x) * 2, positive, -torch.eye(3)),
    "inv": (lambda x: torch.linalg.inv(x) - 1, positive, torch.zeros(3, 3)),
    "solve": (lambda x: torch.linalg.solve(x, x[0]) - 1, positive, torch.zeros(3, 3)),
    "lu_factor": (lambda x: torch.linalg.lu_factor(x)[0] - 1, positive, torch.zeros(3, 3)),
    "eigh": (lambda x: torch.linalg.eigh(x)[0] - 1, positive, torch.full((3, 3), float("nan"))),
    "_assert_async": (
        lambda x: (torch._assert_async(x.sum() > 0, "not positive"), x * 2)[1],  # type: ignore[func-returns-value]
        lambda: torch.rand(3),
        -torch.ones(3),
    ),
    "bernoulli": (lambda x: torch.bernoulli(x) - x, lambda: torch.rand(3), torch.full((3,), 1.5)),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(x, x) * 2, lambda: torch.rand(3), torch.full((3,), 1.5)),
    "normal": (lambda x: torch.normal(x, x) - 1, lambda: torch.rand(3), -torch.ones(3)),
    "indexing": (lambda x: torch.arange(3.0)[x] * 2, lambda: torch.tensor([1, 2]), torch.tensor([0, 3])),
    "scatter": (
        lambda x: torch.zeros(2, 3).scatter(1, x[:, None], 2.0) * 2,
        lambda: torch.tensor([1, 2]),
        torch.tensor([0, 3]),
    ),
    "embedding": (lambda x: F.embedding(x, torch.ones(3, 2)) * 2, lambda: torch.tensor([1, 2]), torch.tensor([0, 3])),
    "classes given": (lambda x: F.one_hot(x, 3) * 2, lambda: torch.tensor([1, 2]), torch.tensor([0, 3])),
    "classes made": (lambda x: F.one_hot(x - 1, num_classes=3), lambda: torch.tensor([1, 2]), torch.tensor([1, 0])),
    "scattered": (
        lambda x: torch.zeros(2, 3).scatter_(1, x[:, None], 2.0) - 1,
        lambda: torch.tensor([1, 2]),
        torch.tensor([0, 3]),
    ),
    "division": (lambda x: 7 // x, lambda: torch.tensor([1, 2]), torch.tensor([1, 0])),
}
