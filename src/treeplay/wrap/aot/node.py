"""What generated functions call: small helpers with a fixed job, and the backward that is compiled when first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.errors import InternalError, UsageError
from treeplay.wrap.aot import torch_private
from treeplay.wrap.aot.compilers import Boxed
from treeplay.wrap.aot.overlap import overlap
from treeplay.wrap.aot.plan import Layout

_compiling = threading.RLock()


class LazyBackward:
    """The backward of a plan. The first call compiles it, once; a compile that fails leaves the next call free to try."""

    def __init__(self, compile_backward: Callable[[], Boxed]) -> None:
        self._compile: Callable[[], Boxed] | None = compile_backward
        self._run: Boxed | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether a backward has run."""
        return self._run is not None

    def __call__(self, values: list[Any]) -> Sequence[Any]:
        if self._run is None:
            self._compile_once()
        assert self._run is not None
        return self._run(values)

    def _compile_once(self) -> None:
        with _compiling:
            if self._compile is not None:
                self._run, self._compile = self._compile(), None


class _Differentiated(torch.autograd.Function):
    """Gradients that may be asked for their own gradient, which raises."""

    @staticmethod
    def forward(ctx: Any, call: Callable[[], Any], *tensors: Any) -> Any:
        return call()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "a compiled function was differentiated twice: its backward has no backward of its own. "
            "To mend: compute this part without treeplay"
        )


def differentiated(run: Boxed, values: list[Any]) -> Any:
    """Run the backward under create_graph: its gradients need gradients and cannot be differentiated."""
    tensors = tuple(value for value in values if isinstance(value, torch.Tensor))

    def call() -> Any:
        gradients = tuple(run(values))
        return tuple(item.detach() if isinstance(item, torch.Tensor) else item for item in gradients)

    return _Differentiated.apply(call, *tensors)  # type: ignore[no-untyped-call]


def differentiated_again(backward: Callable[..., Any], ctx: Any, gradients: Sequence[Any]) -> Any:
    """The same for a backward that opens and builds tensors: the whole of it is run."""
    saved = (*ctx.saved_tensors, *gradients)
    tensors = tuple(value for value in saved if isinstance(value, torch.Tensor))
    return _Differentiated.apply(lambda: backward(ctx, *gradients), *tensors)  # type: ignore[no-untyped-call]


def run_plainly(run: Boxed, values: list[Any]) -> Sequence[Any]:
    """Run a graph while autocast is on outside."""
    result: Sequence[Any] = torch_private.without_autocast(run, values)
    return result


def saved_view(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor to save that holds no history: a view would keep its base's."""
    return tensor.detach() if tensor._is_view() else tensor


def missing(layout: Layout, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A gradient that nobody gave, as the zeros that the backward computes with."""
    return torch.empty_strided(layout.size, layout.stride, dtype=dtype, device=device).zero_()


def laid_out(gradient: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The gradient in the layout that the backward was traced with."""
    if gradient.layout is not torch.strided:
        return gradient
    fresh = torch.empty_strided(layout.size, layout.stride, dtype=gradient.dtype, device=gradient.device)
    return fresh.copy_(gradient)


def lay_out(tensor: torch.Tensor, layout: Layout) -> None:
    """Give a tensor another layout. Its version has moved before the graph."""
    with torch_private.preserving_version(tensor):
        tensor.as_strided_(layout.size, layout.stride, layout.offset)


def wrong_count(expected: int, values: Sequence[Any]) -> InternalError:
    """The graph returned another number of values than its plan says."""
    return InternalError(f"the forward returned the wrong number of values: expected {expected}, got {len(values)}")


def check_copy(one: Any, other: Any, positions: tuple[int, int]) -> None:
    """Refuse a call in which two positions do not hold one object, as they did at the trace."""
    if one is not other:
        raise UsageError(
            f"arguments {positions[0]} and {positions[1]} were one tensor when this was traced, and one of them is "
            "written; now they are two. To mend: wrap the function again for this pattern of arguments"
        )


def check_apart(one: torch.Tensor, other: torch.Tensor, positions: tuple[int, int]) -> None:
    """Refuse a call in which a written argument shares memory with another, as it did not at the trace."""
    if overlap(one, other):
        raise UsageError(
            f"arguments {positions[0]} and {positions[1]} share memory, and one of them is written; when this was "
            "traced they were apart. To mend: wrap the function again for this pattern of arguments"
        )
