"""The tape of a recording on the host: operators in order, over the storages that were there or were made while recording.

    body ── operators ──▶ Recorder ── add ──▶ Tape ── replay ──▶ the same operators into the same storages

Views are made once, while recording; a replay has nothing to do for them. An operator that writes to its arguments is run
again on them. One that allocates its result is run through its `out` form where that writes in place, else it is run and
copied from. The tape holds aliases of all tensors, with the shapes they had when the operator ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.torch_seam.flags import without_autocast
from treeplay.torch_seam.operators import operator_name, with_gradients_on
from treeplay.torch_seam.schemas import KEEPS_FOR_BACKWARD, OutForm, leaves_of, out_form, with_leaves
from treeplay.torch_seam.tensors import storage_of, uses_of_storage

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator of a recording, for people: its name, and the storages it reads and writes, by number."""

    name: str
    reads: frozenset[int]
    writes: frozenset[int]


@dataclass(eq=False, slots=True, weakref_slot=True)
class HostTape:
    """What was recorded. Owned by the recording; holds every tensor that a replay touches."""

    steps: list[Step] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    aliases: list[torch.Tensor] = field(default_factory=list)  # every one held: storages are told apart by identity
    numbers: dict[int, int] = field(default_factory=dict)  # storage -> number, in order of appearance
    made: dict[int, torch.Tensor] = field(default_factory=dict)  # storage -> a tensor of it; allocated by the body
    outside: dict[int, torch.Tensor] = field(default_factory=dict)  # storage -> a tensor of it; there before

    def replay(self) -> None:
        """Run all steps again, without autograd and whatever autocast is on now."""
        with torch.inference_mode(), without_autocast():
            for step in self.steps:
                step()

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor over the same memory that keeps its shape and takes no part in autograd."""
        # As it is now: later the tensor may have another shape or, by `.data =`, other memory.
        alias = tensor.data
        self.aliases.append(alias)
        return alias

    def aliased(self, arguments: Any) -> Any:
        """An operator's arguments with aliases for tensors: the same one for the same tensor, which kernels may ask."""
        known: dict[int, torch.Tensor] = {}

        def alias(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            if id(leaf) not in known:
                known[id(leaf)] = self.alias(leaf)
            return known[id(leaf)]

        return with_leaves(alias, arguments)

    def add(self, op: Any, args: Any, kwargs: Any, written: Sequence[Any], fresh: Sequence[Any]) -> None:
        """Note an operator: its aliased arguments, those that it writes to, and its results in new memory.

        `fresh` has None for a result that is no tensor of new memory.
        """
        self.operations.append(self._operation(op, args, kwargs, [*written, *fresh]))
        self.steps.append(self._step(op, args, kwargs, written, fresh))

    @property
    def size_bytes(self) -> int:
        """The memory that the body allocated and that is held for replays."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.made.values())

    def is_held_elsewhere(self, storage: int) -> bool:
        """Whether somebody besides this tape still holds an outside storage."""
        own = sum(storage_of(alias) == storage for alias in self.aliases)
        return uses_of_storage(self.outside[storage]) > own

    def _step(self, op: Any, args: Any, kwargs: Any, written: Sequence[Any], fresh: Sequence[Any]) -> Step:
        form = None if written else out_form(op)
        if form is not None and None not in fresh:
            step = _into(form, args, kwargs, fresh)
            if step is not None:
                return step
        if op in KEEPS_FOR_BACKWARD and torch.is_grad_enabled():  # which a replay switches off
            op = with_gradients_on(op)
        if any(target is not None for target in fresh):
            return _copied(op, args, kwargs, fresh)
        return lambda: op(*args, **kwargs)

    def _operation(self, op: Any, args: Any, kwargs: Any, writes: Sequence[Any]) -> Operation:
        reads = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        return Operation(operator_name(op), self._numbered(reads), self._numbered(writes))

    def _numbered(self, tensors: Sequence[Any]) -> frozenset[int]:
        found = (storage_of(tensor) for tensor in tensors if tensor is not None)
        return frozenset(self.numbers.setdefault(storage, len(self.numbers)) for storage in found)


def _into(form: OutForm, args: Any, kwargs: Any, targets: Sequence[torch.Tensor]) -> Step | None:
    """A step that writes into `targets`, or None if the `out` form does not leave them as they are.

    It is tried at once: while recording, the values of what the body made mean nothing yet.
    """
    outs = dict(zip(form.outs, targets, strict=True))
    op, args = form.op, (*args, *form.more)
    before = [_place(target) for target in targets]
    try:
        with torch.no_grad():
            op(*args, **kwargs, **outs)
    except (RuntimeError, TypeError):
        return None
    if [_place(target) for target in targets] != before:
        return None
    return lambda: op(*args, **kwargs, **outs)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _copied(op: Any, args: Any, kwargs: Any, targets: Sequence[torch.Tensor | None]) -> Step:
    def step() -> None:
        results = leaves_of(op(*args, **kwargs))
        for target, result in zip(targets, results, strict=True):
            if target is not None:
                target.copy_(result)

    return step
