"""One recording of a callable: a forward and perhaps a backward capture, their static tensors, and a call of them.

arguments ─copy─▶ buffers ─▶ [forward] ─▶ static outputs ─copy─▶ results
gradients ◀─copy─ static ◀─ [backward] ◀─ buffers ◀─copy─ incoming gradients
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import torch
from torch.autograd.graph import increment_version

from treeplay.errors import StaleOutput, UsageError
from treeplay.graphs.body import Packing
from treeplay.graphs.buffers import Buffers
from treeplay.graphs.order import Kept, PoolOrder, ReplayRun, Ticket
from treeplay.torch_seam.operators import clone_all, copy_all
from treeplay.values.location import Location

_version = attrgetter("_version")
Outputs = Literal["copy", "alias", "guard"]
GradientsGiven = Literal["copy", "alias"]


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """The forward capture. `written` are arguments that it writes in place, `aliased` what users are given of the outputs.

    Outputs that are not `differentiable` never require a gradient. `kept`: memory from outside that is read, and lives as
    long as the recording.
    """

    replay: Callable[[], object]
    position: int
    inputs: Buffers
    written: tuple[int, ...]
    outputs: tuple[torch.Tensor, ...]
    aliased: Kept | None
    packing: Packing
    differentiable: tuple[int, ...]
    kept: tuple[torch.UntypedStorage, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Backward:
    """The backward capture. Surface is what gradients go to: arguments by index, then parameters and closure tensors.

    `reads` are parameters whose values it may need, as they were in the forward.
    """

    replay: Callable[[], object]
    position: int
    incoming: Buffers
    arguments: tuple[int, ...]
    parameters: tuple[torch.Tensor, ...]
    reads: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor, ...]
    kept: tuple[torch.UntypedStorage, ...] = ()


class BackwardNeeds(NamedTuple):
    """What a backward needs of its call: that nothing ran over its memory, or wrote to what it reads."""

    call: int
    ticket: Ticket
    inputs: tuple[int, ...]
    parameters: list[int]


class RecordedBody:
    """Replays on request. Keeps all that its captures read and write alive; `order` says who may run when."""

    def __init__(
        self,
        label: str,
        forward: Forward,
        backward: Backward | None,
        order: PoolOrder,
        *,
        outputs: Outputs,
        gradients: GradientsGiven,
    ) -> None:
        self.label = label
        self.forward = forward
        self.backward = backward
        self.order = order
        self.calls = 0
        self.copied = 0
        self.surface_arguments = len(backward.arguments) if backward is not None else 0
        self.surface_parameters = backward.parameters if backward is not None else ()
        self._outputs = outputs
        self._gradients = gradients
        self._fixed = tuple(index for index in range(len(forward.outputs)) if index not in forward.differentiable)

    @property
    def without_gradient(self) -> tuple[int, ...]:
        """Outputs that never require a gradient."""
        return self._fixed

    def run(self, values: Sequence[torch.Tensor], where: Location | None = None) -> tuple[Sequence[torch.Tensor], int]:
        """Fill the buffers, replay forward, and hand the outputs out; also the time of the run.

        Gradients must be off, and the order's lock held.
        """
        forward = self.forward
        # First: the last replay, on another stream perhaps, may still read the buffers that are filled next.
        self.order.enter()
        self.copied += forward.inputs.fill(values)
        self.calls += 1
        forward.replay()
        time = self.order.ran(forward.position, (self.label, self.calls, False, where))
        if forward.written:
            self._write_back(values)
        self._mark_overwritten(forward.position)
        if self._outputs == "copy":
            return clone_all(forward.outputs), time
        return tuple(tensor.detach() for tensor in forward.outputs), time

    def output_ticket(self, time: int) -> Ticket:
        """The claim of a call on its static outputs."""
        return Ticket(self.order, self.forward.position, None, time)

    def saved(self, time: int) -> BackwardNeeds:
        """What the latest call, which ran at `time`, needs for its backward."""
        end = self.backward.position if self.backward is not None else None
        ticket = Ticket(self.order, self.forward.position, end, time)
        return BackwardNeeds(self.calls, ticket, self.forward.inputs.versions(), self._parameter_versions())

    def differentiate(
        self, saved: BackwardNeeds, incoming: Sequence[torch.Tensor | None], needed: Sequence[bool]
    ) -> list[torch.Tensor | None]:
        """Replay backward for the call that saved `saved`; a gradient for each of the surface that needs one."""
        backward = self.backward
        assert backward is not None
        with self.order.lock:
            self._check(saved)
            self.order.enter()
            backward.incoming.fill_or_zero(incoming)
            backward.replay()
            self.order.ran(backward.position, (self.label, saved.call, True, None))
            self._mark_overwritten(backward.position)
            return self._hand_out(backward.gradients, needed)

    def _check(self, saved: BackwardNeeds) -> None:
        spoiler = saved.ticket.spoiler()
        if spoiler is not None:
            raise StaleOutput(_spoiled(ReplayRun(self.label, saved.call), spoiler))
        if self.forward.inputs.versions() != saved.inputs:
            raise UsageError(
                f"{self.label}: a sample tensor was written between a call and its backward. It is the recording's own "
                "input buffer, which the backward reads: write to it before the call, or pass another tensor"
            )
        if self._parameter_versions() != saved.parameters:
            raise UsageError(
                f"{self.label}: a parameter was written between a call and its backward, which reads it as it was in the "
                "call: step the optimizer after the backward"
            )

    def _parameter_versions(self) -> list[int]:
        return [*map(_version, self.backward.reads)] if self.backward is not None else []

    def _mark_overwritten(self, position: int) -> None:
        """Tell autograd that what it saved of these outputs is no longer there: using it is an error then."""
        aliased = self.order.overwritten_by(position)
        if aliased:
            increment_version(aliased)

    def _hand_out(self, gradients: tuple[torch.Tensor, ...], needed: Sequence[bool]) -> list[torch.Tensor | None]:
        if self._gradients == "copy" and all(needed):
            return list(clone_all(gradients))
        wanted = [gradient for gradient, is_needed in zip(gradients, needed, strict=True) if is_needed]
        given = clone_all(wanted) if self._gradients == "copy" else [gradient.detach() for gradient in wanted]
        rest = iter(given)
        return [next(rest) if is_needed else None for is_needed in needed]

    def _write_back(self, values: Sequence[torch.Tensor]) -> None:
        inputs, written = self.forward.inputs, self.forward.written
        moved = [index for index in written if not inputs.is_place_of(index, values[index])]
        copy_all([values[index] for index in moved], [inputs.tensors[index] for index in moved])
        if len(moved) < len(written):  # a replay writes without telling autograd
            increment_version([inputs.tensors[index] for index in written if index not in moved])

    def __repr__(self) -> str:
        return f"<recording of {self.label}, {self.calls} calls>"


def _spoiled(run: ReplayRun, spoiler: ReplayRun) -> str:
    return (
        f"the backward of {run} came too late: {spoiler} ran since, in the same memory, so what the call saved for its "
        "gradient may be gone. Call backward before the next call and once only; callables that are used in another order "
        "than they were wrapped in need memory of their own: wrap them one by one"
    )


def surface_of(recorded: RecordedBody, values: Sequence[Any]) -> list[Any]:
    """The tensors of a call that gradients go to, in the backward's order."""
    backward = recorded.backward
    assert backward is not None
    return [*(values[index] for index in backward.arguments), *backward.parameters]
