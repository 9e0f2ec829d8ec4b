"""What generated functions call: small helpers with a fixed job, and the backward that is compiled when first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.errors import InternalError
from treeplay.wrap.aot import torch_private
from treeplay.wrap.aot.compilers import Boxed
from treeplay.wrap.aot.plan import Layout
from treeplay.wrap.torch_private import tensor_check

_compiling = threading.RLock()


class LazyBackward:
    """The backward of a plan. The first call compiles it for what it is given, once; after a failure the next call tries."""

    def __init__(self, compile_backward: Callable[[Sequence[Any]], Boxed]) -> None:
        self._compile: Callable[[Sequence[Any]], Boxed] | None = compile_backward
        self._run: Boxed | None = None
        self._fits: Callable[..., bool] = _never
        self._strides: tuple[tuple[int, ...] | None, ...] = ()

    @property
    def is_compiled(self) -> bool:
        """Whether a backward has run."""
        return self._run is not None

    def __call__(self, values: list[Any]) -> Sequence[Any]:
        if self._run is None:
            self._compile_once(values)
        elif not self._fits(*values):
            self._lay_out(values)
        assert self._run is not None
        return self._run(values)

    def _compile_once(self, values: Sequence[Any]) -> None:
        with _compiling:
            if self._compile is not None:
                if all(value.layout is torch.strided for value in values if isinstance(value, torch.Tensor)):
                    self._strides = tuple(
                        value.stride() if isinstance(value, torch.Tensor) else None for value in values
                    )
                    self._fits = _check(values)
                self._run, self._compile = self._compile(values), None

    def _lay_out(self, values: list[Any]) -> None:
        """Lay out what differs as when this was compiled: hooks of the user's may unpack a saved tensor in another way."""
        for at, (value, stride) in enumerate(zip(values, self._strides, strict=False)):
            if stride is not None and value.layout is torch.strided and value.stride() != stride:
                first = value  # what was one slice, shown several times, still is
                for dimension in (d for d, step in enumerate(stride) if step == 0 and value.size(d) > 1):
                    first = first.narrow(dimension, 0, 1)
                values[at] = laid_out(first, Layout(tuple(first.size()), stride, 0)).expand(value.size())


def _never(*_: Any) -> bool:
    return False


def _check(values: Sequence[Any]) -> Callable[..., bool]:
    """Whether tensors are like those of `values`. Generators, and what stands for tokens, are not looked at."""
    places = [at for at, value in enumerate(values) if isinstance(value, torch.Tensor)]
    check = tensor_check([values[at] for at in places])
    return check if len(places) == len(values) else lambda *given: check(*[given[at] for at in places])


def as_it_lies(fake: Any, value: Any) -> Any:
    """`fake`, or if `value` lies in memory in another way, a fake that lies so."""
    if not isinstance(fake, torch.Tensor) or not isinstance(value, torch.Tensor):
        return fake
    stride, offset = value.stride(), value.storage_offset()
    if (fake.stride(), fake.storage_offset()) == (stride, offset) or value.layout is not torch.strided:
        return fake
    span = sum((size - 1) * step for size, step in zip(value.shape, stride, strict=True)) if value.numel() else 0
    with torch_private.mode_of_fake(fake):
        return torch.empty(offset + span + 1, dtype=value.dtype, device=value.device).as_strided(
            value.shape, stride, offset
        )


def note_write(tensor: torch.Tensor) -> None:
    """Tell autograd that a tensor is written by the graph."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


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


def write_unnoticed(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """A write that came through `.data`: the version stays."""
    with torch_private.preserving_version(tensor):
        tensor.detach().copy_(value.detach())


def wrong_count(expected: int, values: Sequence[Any]) -> InternalError:
    """The graph returned another number of values than its plan says."""
    return InternalError(f"the forward returned the wrong number of values: expected {expected}, got {len(values)}")


def late_write() -> RuntimeError:
    """The backward writes to an argument that needs a gradient, under create_graph."""
    return RuntimeError(
        "the backward of a compiled function writes to an argument that needs a gradient, and create_graph=True asks for "
        "a history of that write, which is not kept. To mend: compute this part without treeplay, or without create_graph"
    )
