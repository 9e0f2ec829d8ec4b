"""The one autograd node of a recorded call."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from treeplay.errors import UsageError
from treeplay.graphs.recorded import RecordedBody
from treeplay.values.location import Location


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


class FirstOrderOnly(torch.autograd.Function):
    """Passes gradients on, and refuses to be differentiated: nothing knows how the recorded backward came about."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The first `count` tensors; they depend on the others as far as autograd is concerned."""
        return tuple(tensor.detach() for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Raise `UsageError`."""
        raise UsageError(
            "the gradient of a recorded callable cannot be differentiated: its backward is a recording, first-order only. "
            "For a second derivative call the original, unrecorded"
        )


def _first_order_only(
    gradients: list[torch.Tensor | None], origins: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """The gradients, from which every way back to `origins`, or to anything, ends in an error."""
    found = [gradient for gradient in gradients if gradient is not None]
    if not found:
        return gradients
    anchors = [origin for origin in origins if origin is not None and origin.requires_grad]
    # So the gradients have a history, and to differentiate them is an error, also where no origin needs one.
    anchors.append(torch.empty(0, device=found[0].device, requires_grad=True))
    tied = iter(FirstOrderOnly.apply(len(found), *found, *anchors))  # type: ignore[no-untyped-call]
    return [None if gradient is None else next(tied) for gradient in gradients]
