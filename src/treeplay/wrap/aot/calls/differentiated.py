"""A backward that runs under create_graph: its gradients depend on the arguments, and to differentiate them raises."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from treeplay.errors import UsageError
from treeplay.torch_seam.autograd import first_order_only
from treeplay.values.boxed import Boxed


def differentiated(run: Boxed, values: list[Any], why: str | None) -> Any:
    """Run the backward under create_graph: its gradients need gradients and cannot be differentiated, and `why` not."""

    def call() -> Any:
        gradients = tuple(run(values))
        return tuple(item.detach() if isinstance(item, torch.Tensor) else item for item in gradients)

    # Of all values, though what was saved is without a history: the gradients depend on the arguments.
    return first_order_only(call, _message(why), _tensors(values))


def differentiated_again(ctx: Any, gradients: Sequence[Any]) -> Any:
    """The same for a backward that opens and builds tensors: the whole of it is run."""
    backward = ctx._forward_cls.backward
    message = _message("it takes or returns tensors made of other tensors")
    return first_order_only(lambda: backward(ctx, *gradients), message, _tensors((*ctx.saved_tensors, *gradients)))


def _message(why: str | None) -> str:
    because = f", since {why}" if why else ""
    return (
        f"a compiled function was differentiated twice: its backward has no backward of its own{because}. Fix: compute this "
        "part without treeplay"
    )


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def late_write() -> UsageError:
    """The error of a backward under create_graph that writes to what needs a gradient."""
    return UsageError(
        "the backward of a compiled function writes to an argument that needs a gradient, and create_graph=True asks for "
        "a history of that write, which is not kept. Fix: compute this part without treeplay, or without create_graph"
    )
