"""Tensors that outlive the call: operators may write their elements, but give them neither a history nor another shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.schemas import is_foreach, is_written, leaves_of
from treeplay.trace.run.tape import spoken_name
from treeplay.values.location import Location
from treeplay.values.refusal import Reason

_GIVES_HISTORY = (
    "makes a tensor that outlives the call part of a gradient graph",
    "write the detached value, or write under torch.no_grad()",
)


class Lasting:
    """`arguments` are the tensors that are arguments of the call, by identity. They may get a history, which is taken back."""

    def __init__(self, refuse: Callable[..., Refusal]) -> None:
        self._refuse = refuse
        self.arguments: Mapping[int, torch.Tensor] = {}
        self.given_history: list[tuple[torch.Tensor, Reason]] = []  # arguments without one, and why they may not get it
        self.switched: dict[int, tuple[torch.Tensor, bool, Location | None]] = {}
        """Those whose `requires_grad` the program has set to something else, what it was, and the first line that did."""

    def check(self, func: Any, args: Any, kwargs: Any, where: Location | None) -> None:
        """Refuse what would change a tensor that outlives the call other than in its elements."""
        if not func._schema.is_mutable:
            return
        if torch.Tag.inplace_view in func.tags and not isinstance(args[0], FakeTensor):
            raise self._refuse(
                spoken_name(func),
                "changes the shape of a tensor that outlives the call",
                "use the form without the underscore, and return its result",
                where,
            )
        if torch.is_grad_enabled() and any(_wants_grad(leaf) for leaf in leaves_of((args, kwargs))):
            for target in _differentiable_targets(func, args):
                owner = target._base if target._base is not None else target
                if isinstance(owner, FakeTensor) or any(owner is known for known, _ in self.given_history):
                    continue
                if id(owner) not in self.arguments or owner.requires_grad or owner._is_view():
                    raise self._refuse(spoken_name(func), *_GIVES_HISTORY, where)
                self.given_history.append((owner, Reason(spoken_name(func), *_GIVES_HISTORY, where)))

    def check_history(self, tensor: torch.Tensor) -> None:
        """Refuse a custom function that gives a history to a tensor which outlives the call."""
        owner = tensor._base if tensor._base is not None else tensor
        if not isinstance(owner, FakeTensor):
            raise self._refuse(
                "mark_dirty",
                "makes a tensor that outlives the call part of a gradient graph",
                "let the function return a new tensor, or call it on a clone",
            )

    def note_switch(self, tensor: torch.Tensor, where: Location | None) -> None:
        """`requires_grad` of a tensor that outlives the call will be something else."""
        self.switched.setdefault(id(tensor), (tensor, tensor.requires_grad, where))

    def finish(self) -> None:
        """Refuse a program that leaves `requires_grad` other than it was, and put back the rest."""
        for tensor, before, where in self.switched.values():
            if tensor.requires_grad != before:
                raise self._refuse(
                    "requires_grad = ...",
                    "leaves `requires_grad` of a tensor that outlives the call other than it was",
                    "do it once, outside of the program, or put it back at the end; inside, leave tensors out of a backward by "
                    "detach() or inputs=...",
                    where,
                )
        self.put_back()

    def put_back(self) -> None:
        """Detach the arguments that the program made part of a gradient graph, and have `requires_grad` be what it was. Safe to
        call more than once."""
        for owner, _ in self.given_history:
            if owner.grad_fn is not None:
                owner.detach_()
        for tensor, before, _ in self.switched.values():
            if tensor.requires_grad != before:
                tensor.requires_grad_(before)


def _wants_grad(leaf: Any) -> bool:
    """Whether a leaf of an operator's arguments is a tensor that autograd records."""
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _differentiable_targets(func: Any, args: Any) -> Iterator[torch.Tensor]:
    """The tensors that autograd would give a history: those an in-place operator writes and returns."""
    for value, argument in zip(args, func._schema.arguments, strict=False):
        # In place, operators over lists return nothing.
        if is_written(argument) and (is_foreach(func) or _is_returned(func, argument)):
            yield from (leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor))


def _is_returned(func: Any, argument: Any) -> bool:
    names = argument.alias_info.before_set
    return any(out.alias_info is not None and out.alias_info.before_set == names for out in func._schema.returns)
