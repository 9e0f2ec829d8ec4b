"""The one autograd node of a recorded call."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from treeplay.graphs.recorded import RecordedBody
from treeplay.torch_seam.autograd import first_order_only
from treeplay.values.location import Location

_MESSAGE = (
    "the gradient of a recorded callable cannot be differentiated: its backward is a recording, first-order only. For a "
    "second derivative call the original, unrecorded"
)


class PendingCall:
    """One call on its way through autograd: its arguments, and when it ran."""

    __slots__ = ("recorded", "time", "values", "where")

    def __init__(self, recorded: RecordedBody, values: Sequence[torch.Tensor], where: Location | None) -> None:
        self.recorded = recorded
        self.values = values
        self.where = where
        self.time = 0

    def run(self) -> Sequence[torch.Tensor]:
        """Replay forward."""
        outputs, self.time = self.recorded.run(self.values, self.where)
        return outputs


class ReplayedCall(torch.autograd.Function):
    """Replays forward and, for gradients, backward. Its inputs are the tensors that gradients go to."""

    @staticmethod
    def forward(ctx: Any, call: PendingCall, *surface: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs, those that never need a gradient marked so."""
        outputs = tuple(call.run())
        recorded = call.recorded
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[outputs[index] for index in recorded.without_gradient])
        ctx.recorded, ctx.saved = recorded, recorded.saved(call.time)
        # Weakly: the recording has copies of what it needs.
        ctx.arguments = [weakref.ref(tensor) for tensor in surface[: recorded.surface_arguments]]
        return outputs

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """A gradient for each of the surface."""
        recorded: RecordedBody = ctx.recorded
        differentiable = [incoming[index] for index in recorded.forward.differentiable]
        if not torch.is_grad_enabled():
            return None, *recorded.differentiate(ctx.saved, differentiable, ctx.needs_input_grad[1:])
        with torch.no_grad():
            gradients = recorded.differentiate(ctx.saved, differentiable, ctx.needs_input_grad[1:])
        origins = [*(reference() for reference in ctx.arguments), *recorded.surface_parameters, *incoming]
        return None, *_first_order_only(gradients, origins)


def _first_order_only(
    gradients: list[torch.Tensor | None], origins: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """The gradients, which refuse to be differentiated: nothing knows how the recorded backward came about."""
    found = [gradient for gradient in gradients if gradient is not None]
    if not found:
        return gradients
    known = [origin for origin in origins if origin is not None and origin.requires_grad]
    tied = iter(first_order_only(lambda: tuple(gradient.detach() for gradient in found), _MESSAGE, known))
    return [None if gradient is None else next(tied) for gradient in gradients]
