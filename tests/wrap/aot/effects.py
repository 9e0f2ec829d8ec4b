"""An operator with a side effect: it logs a sum."""

from __future__ import annotations

from typing import Any

import torch

LOG: list[float] = []


@torch.library.custom_op("treeplay_tests::logged", mutates_args=())
def logged(x: torch.Tensor, scale: float) -> torch.Tensor:
    LOG.append(float(x.sum() * scale))
    return x * scale


@logged.register_fake
def _(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.scale = inputs[1]


logged.register_autograd(lambda ctx, gradient: (logged(gradient, ctx.scale + 0.5), None), setup_context=_setup)


def twice(x: Any) -> Any:
    return [logged(x, 2.0) + logged(x * 2, 3.0)]
