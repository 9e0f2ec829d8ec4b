"""Steps that may be skipped: `GradScaler.step` while a program is traced.

Eager asks on the host whether a gradient overflowed, and skips the optimizer's step if so. A recording cannot wait for the
answer: it takes the step, and puts back whatever the step wrote where the answer was yes.

    scaler.step(optimizer)  ─▶  old = p.clone()              for each tensor that was there before and that the step writes
                                optimizer.step()
                                where(found, old, p, out=p)

What a skipped step would not have made (the optimizer's state, on its very first step) has no old value to put back: it is
too early to record such a call. It runs eagerly, and a later one is traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam.layers import scaled_step_replaced
from treeplay.torch_seam.modes import DisableTorchFunction
from treeplay.torch_seam.schemas import is_random
from treeplay.torch_seam.tensors import storage_of
from treeplay.trace.restore.contents import Change
from treeplay.trace.restore.snapshot import Snapshot
from treeplay.trace.run.tape import TracedValue
from treeplay.trace.run.tracer import Tracer
from treeplay.trace.survey.found import GONE
from treeplay.values.place import Place
from treeplay.values.spec import TensorSpec


def steps_may_be_skipped(tracer: Tracer, snapshot: Snapshot) -> contextlib.AbstractContextManager[None]:
    """While a program is traced, `GradScaler.step` of this thread leaves the decision to the device."""

    def step(optimizer: torch.optim.Optimizer, found: Iterable[torch.Tensor], args: Any, kwargs: Any) -> Any:
        skip = _any_of(found)
        before = _changes(snapshot)
        region = Region(tracer)
        with region:
            result = optimizer.step(*args, **kwargs)
        _check_python(tracer, before, _changes(snapshot), result)
        region.select(skip)

    return scaled_step_replaced(step)


def _any_of(found: Iterable[torch.Tensor]) -> torch.Tensor:
    first, *others = found
    total = first
    for other in others:
        total = total + other.to(first.device, non_blocking=True)
    return total != 0


def _changes(snapshot: Snapshot) -> dict[Place, Change]:
    return {change.place: change for change in snapshot.changes()}


def _check_python(tracer: Tracer, before: dict[Place, Change], after: dict[Place, Change], result: Any) -> None:
    """Refuse a step that may be skipped and changes more than elements of tensors."""
    if result is not None:
        raise tracer.refuse("step", "returns a result that a skipped step would not give", "call it without a closure")
    for place, change in after.items():
        if place in before and before[place].after is change.after:
            continue
        # What was not there yet will be, once a step was not skipped.
        tracer.tape.is_too_early = tracer.tape.refusal is None and (change.before is GONE or change.before is None)
        raise tracer.refuse(
            str(place),
            "is rebound in a step that may be skipped",
            "keep it in a tensor that is updated in place",
        )


@dataclass(frozen=True, slots=True)
class _OldValue:
    """A tensor that was there before a region, and its old values."""

    tensor: torch.Tensor
    old: torch.Tensor


class Region:
    """A stretch of a traced program whose writes are undone on the device where a condition holds."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._graph = tracer.tape.graph
        nodes = list(self._graph.nodes)
        self._last = nodes[-1] if nodes else None
        self._known = set(nodes)
        self._written: list[TracedValue] = []

    def __enter__(self) -> None:
        self._tracer.on_write = self._note

    def __exit__(self, *_: Any) -> None:
        self._tracer.on_write = None

    def _note(self, value: TracedValue) -> None:
        if self._is_older(self._tracer.tape.births[storage_of(value.fake)]):
            self._written.append(value)

    def _is_older(self, node: torch.fx.Node) -> bool:
        # An input that is met within the region was there before it.
        return node.op == "placeholder" or node in self._known

    def select(self, skip: torch.Tensor) -> None:
        """Give each tensor that was written its old values where `skip` holds."""
        self._check_draws()
        if not self._written:
            return
        log = len(self._tracer.tape.log)
        with DisableTorchFunction(), torch.no_grad(), torch.autocast(skip.device.type, enabled=False):
            with self._graph.inserting_before(self._first()):
                written = [self._keep_old(value) for value in self._distinct()]
            for item in written:
                here = skip.to(item.tensor.device, non_blocking=True)
                torch.where(here, item.old, item.tensor, out=item.tensor)
        del self._tracer.tape.log[log:]  # eager has no such operators

    def _first(self) -> torch.fx.Node:
        first: torch.fx.Node = self._last.next if self._last is not None else next(iter(self._graph.nodes))
        return first

    def _distinct(self) -> list[TracedValue]:
        found: dict[Any, TracedValue] = {}
        for value in self._written:
            found.setdefault((storage_of(value.fake), value.fake.storage_offset(), TensorSpec.of(value.fake)), value)
        return list(found.values())

    def _keep_old(self, value: TracedValue) -> _OldValue:
        tensor = value.handle
        if not self._is_older(value.node):  # a view that the step made: make it before the step
            birth = self._tracer.tape.births[storage_of(value.fake)]
            base = next(known for known in self._tracer.tape.values.values() if known.node is birth).handle
            fake = value.fake
            tensor = torch.as_strided(base, fake.shape, fake.stride(), fake.storage_offset())
        return _OldValue(tensor, tensor.clone())

    def _check_draws(self) -> None:
        node = self._last.next if self._last is not None else None
        while node is not None and node.op != "root":
            if is_random(node.target):
                raise self._tracer.refuse(
                    str(node.target),
                    "draws random numbers in a step that may be skipped, and a replay would draw them all the same",
                    "draw outside of the optimizer's step",
                    node.meta.get("where"),
                )
            node = node.next
