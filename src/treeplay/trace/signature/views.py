"""References to tensors that share memory with others: by where they lie, and by what autograd has them down as.

    d = x.detach()          d        View(x, None, is_detached)         a tensor of its own for autograd, in x's memory
    return d, d[1:], x[1:]  d[1:]    View(View(x, None, is_detached), ...)
                            x[1:]    View(x, ...)

A replay gives the same: after `x.mul_(w)`, with a `w` that requires a gradient, only x[1:] requires one.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from treeplay.torch_seam.autograd import shares_version, was_taken_with_gradients
from treeplay.torch_seam.tensors import view_base
from treeplay.values.memory import Extent, OutputMemory, view_of
from treeplay.values.output import Fresh, SameAsInput, View
from treeplay.values.signature import Ref

_NOT_OF_THE_PROGRAM = -1
"""The number of a detached tensor that only its views are made of: those of the program's count from 0."""


class ViewReferences:
    """Makes references to tensors by the memory that they lie in."""

    def __init__(self, memory: OutputMemory) -> None:
        self.memory = memory
        self._views: collections.Counter[View] = collections.Counter()
        # Tensors that are no views for autograd, the references to them, and where they lie.
        self._apart: list[tuple[torch.Tensor, Fresh | View, Extent]] = []

    def ref(self, leaf: Any) -> Ref:
        """A reference to a leaf of the program's result, or of what it stored."""
        raise NotImplementedError

    def in_memory(
        self, tensor: torch.Tensor, extent: Extent, whole: Extent, inputs: Sequence[torch.Tensor]
    ) -> Fresh | View | None:
        """The reference to a tensor that lies in `extent`, by its memory, with what autograd makes of it. `whole` and None: as
        `OutputMemory.ref` has them."""
        is_leaf = tensor.requires_grad and tensor.grad_fn is None
        base = view_base(tensor)
        seen = self._autograds_view(tensor, base, extent, inputs) if base is not None else None
        ref = seen or self.memory.ref(extent, whole)
        if ref is None:
            return None
        # The history that a tensor has of an input follows from a view of it; of what is new there is none.
        if isinstance(ref, View) and base is None and (tensor.grad_fn is None or isinstance(ref.of, Fresh)):
            ref = self._detached(tensor, ref, extent, inputs)
        ref = replace(ref, requires_grad=is_leaf)
        if isinstance(ref, View):
            ref = replace(ref, with_gradients=self._grad_mode(tensor, ref, inputs))
            # Two views that lie alike are two tensors: a number tells them apart.
            self._views[ref] += 1
            ref = replace(ref, number=self._views[ref] - 1)
        if base is None:
            self._apart.append((tensor, ref, extent))
        return ref

    def _autograds_view(
        self, tensor: torch.Tensor, base: torch.Tensor, extent: Extent, inputs: Sequence[torch.Tensor]
    ) -> View | None:
        """The reference to a tensor that is a view of `base` for autograd: what is written to the one is written to the history
        of both. None where `base` is not of this run."""
        of: Ref | None = None
        for index in self._owners(extent):
            if base is inputs[index] or base is view_base(inputs[index]):
                of, at, base = SameAsInput(index), self.memory.inputs[index], inputs[index]
                break
        else:
            if (found := self._made(base)) is not None:
                of, at = self.ref(base), found
        if not isinstance(of, (Fresh, SameAsInput, View)):
            return None
        # Taken of the base once more, the view would require a gradient as that does, and get a history where it was taken with
        # gradients on; this one may not.
        has_none = torch.is_grad_enabled() and tensor.grad_fn is None and was_taken_with_gradients(tensor)
        is_apart = not tensor.requires_grad or has_none
        needs_grad = base.requires_grad if isinstance(of, SameAsInput) else of.requires_grad
        if needs_grad and is_apart:
            of = View(of, None, is_detached=True, number=_NOT_OF_THE_PROGRAM)
        return view_of(of, at, extent)

    def _grad_mode(self, tensor: torch.Tensor, view: View, inputs: Sequence[torch.Tensor]) -> bool | None:
        """Whether gradients were on where a view was taken, if not as they are around the call."""
        was_on = was_taken_with_gradients(tensor)
        # What is taken of a view to which nothing with a history may be written is like it.
        is_as_base = isinstance(view.of, SameAsInput) and was_taken_with_gradients(inputs[view.of.index]) is False
        return None if was_on == torch.is_grad_enabled() or is_as_base else was_on

    def _detached(self, tensor: torch.Tensor, ref: View, extent: Extent, inputs: Sequence[torch.Tensor]) -> View:
        """The reference to a tensor that lies in memory of others and is a view of none of them for autograd: a detached one,
        `x.data`, a part that `unsafe_split` gives. `ref` is what it would be by its memory alone."""
        given = [(inputs[at], SameAsInput(at), self.memory.inputs[at]) for at in self._owners(extent)]
        apart = [one for one in self._apart if one[2].storage == extent.storage]
        for other, of, at in (*given, *apart):
            if tensor.is_inference() and other.is_inference():
                return ref  # autograd knows neither
            if shares_version(tensor, other) and (view := view_of(of, at, extent)) is not None:
                return replace(view, layout=None if extent.is_like(at) else view.layout, is_detached=True)
        return replace(ref, is_detached=True, has_own_version=True)

    def _owners(self, extent: Extent) -> list[int]:
        """The inputs in whose storage `extent` lies, first those that it is within: how others lie to these may differ."""
        return sorted(self.memory.owners(extent), key=lambda at: not extent.is_within(self.memory.inputs[at]))

    def _made(self, base: torch.Tensor) -> Extent | None:
        """Where a tensor lies that the run has made; None for one that it was given."""
        raise NotImplementedError
