"""Whether a graph draws random numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from support import call_of
from treeplay.torch_seam.schemas import draws
from treeplay.trace.jit import trace

attention = F.scaled_dot_product_attention


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x: x * 2 - 1, False),
        (lambda x: torch.rand_like(x) - x, True),
        (lambda x: F.dropout(x, 0.5), True),
        (lambda x: F.dropout(x, 0.5, training=False) - 1, False),
        (lambda x: attention(x, x, x), False),
        (lambda x: attention(x, x, x, dropout_p=0.0), False),
        (lambda x: attention(x, x, x, dropout_p=0.5), True),
        (lambda x: x.clone().uniform_() - attention(x, x, x), True),
        (partial(torch.normal, 0.0), True),
    ],
)
def test_it_is_told_from_operators_and_their_dropout(program: Callable[..., torch.Tensor], expected: bool) -> None:
    traced = trace(program, call_of(torch.rand(1, 2, 4, 4)), is_exact=True, first_run=[])
    assert any(draws(node.target, node.args, node.kwargs) for node in traced.graph.nodes) == expected
