"""Random programs over a few tensors, all of whose arithmetic minds its order: a stale or doubled result changes the number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch.nn import functional as F


def fit(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """`v`, or its mean where it does not go with `u`."""
    try:
        return v if torch.broadcast_shapes(u.shape, v.shape) == u.shape else v.mean()
    except RuntimeError:
        return v.mean()


INSTRUCTIONS: list[Callable[[torch.Tensor, torch.Tensor], Any]] = [
    lambda u, v: u * 2 - fit(u, v),
    lambda u, v: torch.tanh(u) + 0.5,
    lambda u, v: u.sub_(fit(u, v)).mul_(0.5),
    lambda u, v: u.copy_(fit(u, v) * 0.25 + 1),
    lambda u, v: u.t() if u.dim() == 2 else u.flatten()[1:],
    lambda u, v: u[..., ::2] if u.dim() else u,
    lambda u, v: u.reshape(-1)[1:],
    lambda u, v: u.unsqueeze(0).expand(2, *u.shape),
    lambda u, v: torch.cat([u.flatten(), v.flatten()]),
    lambda u, v: u.sum(-1, keepdim=True) - u.mean() if u.dim() else u * 3,
    lambda u, v: u + torch.rand_like(u),
    lambda u, v: F.dropout(u, 0.3),
    lambda u, v: u.add_(torch.randn((), device=u.device)),
    lambda u, v: torch.where(u > fit(u, v), u, -u),
    lambda u, v: u.clamp_(-2, 2),
    lambda u, v: u.clone(memory_format=torch.contiguous_format).zero_().add_(fit(u, v)),
    lambda u, v: u.flatten().sort().values,
    lambda u, v: u.to(torch.float64).cumsum(-1).to(torch.float32) if u.dim() else u - 1,
    lambda u, v: torch.zeros(3, device=u.device).add_(u.mean()) + torch.arange(3, device=u.device),
    lambda u, v: torch.empty_like(u).fill_(0.125) * u,
    lambda u, v: (
        (u.flatten()[:3] - 1).index_add_(0, torch.arange(2, device=u.device), v.mean().expand(2))
        if u.numel() > 2
        else u
    ),
    lambda u, v: u.diagonal().mul_(0.5) if u.dim() == 2 else u,
    lambda u, v: torch.stack([u, fit(u, v).expand_as(u)]).unbind()[1] * 0.5,
]
PROGRAMS = st.lists(
    st.tuples(st.integers(0, len(INSTRUCTIONS) - 1), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=12
)


def is_valid(body: Callable[[], Any]) -> bool:
    """Whether a random program runs eagerly: autograd refuses some that write in place, operators some that overlap."""
    try:
        body()
    except RuntimeError:
        return False
    return True


def run(program: list[tuple[int, int, int]], *state: torch.Tensor) -> list[torch.Tensor]:
    tensors = list(state)
    for index, first, second in program:
        u, v = tensors[first % len(tensors)], tensors[second % len(tensors)]
        if not u.numel() or not v.numel() or u.numel() > 200:
            continue
        is_expanded = any(stride == 0 and size > 1 for size, stride in zip(u.shape, u.stride(), strict=True))
        tensors.append(INSTRUCTIONS[index](u.clone() if is_expanded else u, v))
    return tensors[len(state) :]
