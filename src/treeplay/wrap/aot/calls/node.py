"""What the generated functions of a compiled graph call: small helpers with a fixed job, and what a result needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.errors import InternalError
from treeplay.torch_seam import autograd, flags
from treeplay.torch_seam.operators import ExcludeKeys, keys_above_operators
from treeplay.values.boxed import Boxed
from treeplay.values.layout import Layout

_ABOVE = keys_above_operators()


@dataclass(frozen=True, eq=False)
class Needs:
    """What a result needs for its backward: what runs the graph, what gives gradients that lead on, what gives those under
    autocast, where the graph's are others, and what runs the graph for some inputs, where it acts for some only.

    Kept by the call function, and by each result on its own. The node's class only refers to it: a class is a cycle, and what
    it keeps waits for the garbage collector."""

    run: Boxed
    onward: Callable[..., Any] | None
    under_autocast: Callable[..., Any] | None
    run_for: Callable[[Any], Boxed] | None = None


def note_write(tensor: torch.Tensor) -> None:
    """Tell autograd that a tensor is written by the graph."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def note_every_write(tensors: list[torch.Tensor]) -> None:
    """The same for many tensors."""
    autograd.increment_versions([tensor for tensor in tensors if not tensor.is_inference()])


def run_plainly(run: Callable[..., Any], *given: Any) -> Any:
    """Run a graph while autocast is on outside."""
    with flags.without_autocast():
        return run(*given)


def missing(layout: Layout, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A gradient that nobody gave, as the zeros that the backward computes with."""
    return torch.empty_strided(layout.shape, layout.stride, dtype=dtype, device=device).zero_()


def gradient_in_layout(gradient: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The gradient in the layout that the backward was traced with."""
    if gradient.layout is not torch.strided:
        return gradient
    fresh = torch.empty_strided(layout.shape, layout.stride, dtype=gradient.dtype, device=gradient.device)
    return fresh.copy_(gradient)


def memory_as(tensor: torch.Tensor, dtype: torch.dtype, begin: int) -> torch.Tensor:
    """A view of all the memory that a tensor lies in, from its element `begin` on, as numbers of another dtype;
    differentiable where these can be."""
    length = tensor.untyped_storage().nbytes() // tensor.element_size() - begin
    flat = tensor.as_strided((length,), (1,), begin)
    if tensor.is_complex() and dtype is tensor.dtype.to_real():
        return torch.view_as_real(flat)
    ratio = max(1, dtype.itemsize // tensor.element_size())
    flat = flat[: length // ratio * ratio]
    if dtype.is_complex and dtype.to_real() is tensor.dtype:
        return torch.view_as_complex(flat.view(-1, 2))
    return flat.view(dtype)


def view_in(memory: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A view that lies so, counted from where `memory` begins."""
    return memory.as_strided(layout.shape, layout.stride, memory.storage_offset() + layout.offset)


def lay_out(tensor: torch.Tensor, layout: Layout) -> None:
    """Give a tensor another layout, counted from where it begins. Its version has moved before the graph."""
    with autograd.preserving_version(tensor):
        tensor.as_strided_(layout.shape, layout.stride, tensor.storage_offset() + layout.offset)


def write_unnoticed(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """A write that came through `.data`, or that of a batch norm to its statistics: the version stays."""
    if type(tensor) is torch.Tensor and type(value) is torch.Tensor:
        with ExcludeKeys(_ABOVE):  # one of these keys counts versions up
            tensor.copy_(value)
        return
    with autograd.preserving_version(tensor):
        tensor.detach().copy_(value.detach())


def wrong_count(expected: int, values: Sequence[Any], place: str) -> InternalError:
    """The error of a graph that returned another number of values."""
    return InternalError(f"the {place} returned the wrong number of values: expected {expected}, got {len(values)}")
