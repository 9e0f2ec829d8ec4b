"""A backward that runs under create_graph: its gradients depend on the arguments, and to differentiate them raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.errors import UsageError
from treeplay.wrap.aot.compilers import Boxed


class _Differentiated(torch.autograd.Function):
    """Gradients that may be asked for their own gradient, which raises."""

    @staticmethod
    def forward(ctx: Any, call: Callable[[], Any], why: str | None, *tensors: Any) -> Any:
        ctx.because = f", since {why}" if why else ""
        return call()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UsageError(
            f"a compiled function was differentiated twice: its backward has no backward of its own{ctx.because}. "
            "Fix: compute this part without treeplay"
        )


def differentiated(run: Boxed, values: list[Any], why: str | None) -> Any:
    """Run the backward under create_graph: its gradients need gradients and cannot be differentiated, and `why` not."""
    # What was saved is without a history, and yet the gradients depend on the arguments: they must not pass for constants.
    tensors = (torch.empty(0, requires_grad=True), *(value for value in values if isinstance(value, torch.Tensor)))

    def call() -> Any:
        gradients = tuple(run(values))
        return tuple(item.detach() if isinstance(item, torch.Tensor) else item for item in gradients)

    return _Differentiated.apply(call, why, *tensors)  # type: ignore[no-untyped-call]


def differentiated_again(ctx: Any, gradients: Sequence[Any]) -> Any:
    """The same for a backward that opens and builds tensors: the whole of it is run."""
    saved = (torch.empty(0, requires_grad=True), *ctx.saved_tensors, *gradients)  # the first as above
    tensors = tuple(value for value in saved if isinstance(value, torch.Tensor))
    backward = ctx._forward_cls.backward
    why = "it takes or returns tensors made of other tensors"
    return _Differentiated.apply(lambda: backward(ctx, *gradients), why, *tensors)  # type: ignore[no-untyped-call]


def late_write() -> UsageError:
    """The error of a backward under create_graph that writes to what needs a gradient."""
    return UsageError(
        "the backward of a compiled function writes to an argument that needs a gradient, and create_graph=True asks for "
        "a history of that write, which is not kept. Fix: compute this part without treeplay, or without create_graph"
    )
