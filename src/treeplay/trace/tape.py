"""What a trace writes down, and small questions about tensors, storages and operators' arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam.schemas import leaves_of
from treeplay.trace.log import LoggedCall
from treeplay.values.refusal import Reason


@dataclass(eq=False, slots=True)
class TracedValue:
    """A tensor of the trace: the fake that was computed, the handle Python holds, and its node in the graph."""

    fake: torch.Tensor
    handle: torch.Tensor
    node: torch.fx.Node
    is_input: bool


@dataclass(eq=False, slots=True)
class InputSeen:
    """A real tensor that the program used: an argument, state, or a constant it made from Python numbers."""

    tensor: torch.Tensor
    value: TracedValue
    is_constant: bool = False
    begins: int | None = None  # where in its memory, if the program said where in that memory something else begins


@dataclass(slots=True)
class TraceTape:
    """What a finished trace wrote down. Fakes are alive only as long as the tracer is."""

    graph: torch.fx.Graph
    inputs: list[InputSeen] = field(default_factory=list)
    log: list[LoggedCall] = field(default_factory=list)
    mutated: set[int] = field(default_factory=set)  # fake storages that an operator wrote to
    generators: dict[int, torch.Generator] = field(default_factory=dict)  # by identity, those that operators drew from
    refusal: Reason | None = None
    is_too_early: bool = False  # the refusal is of this call, not of later ones
    uses_backward: bool = False
    fills_gradients: bool = False  # by a backward that adds to `.grad`


def wants_grad(leaf: Any) -> bool:
    """Whether a leaf of an operator's arguments is a tensor that autograd records."""
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def differentiable_targets(func: Any, args: Any) -> Iterator[torch.Tensor]:
    """The tensors that autograd would give a history: those an in-place operator writes and returns."""
    is_foreach = func._schema.name.startswith("aten::_foreach")
    for position, argument in enumerate(func._schema.arguments):
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if is_written and position < len(args) and (is_foreach or _is_returned(func, argument)):
            yield from (leaf for leaf in leaves_of(args[position]) if isinstance(leaf, torch.Tensor))


def _is_returned(func: Any, argument: Any) -> bool:
    names = argument.alias_info.before_set
    return any(out.alias_info is not None and out.alias_info.before_set == names for out in func._schema.returns)


def content(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The values of a small constant, so that one which changes from call to call is seen."""
    flat = tensor.detach().flatten()[:64]
    return tuple(flat.tolist())
