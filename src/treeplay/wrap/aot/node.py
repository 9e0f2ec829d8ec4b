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
from treeplay.wrap.aot.plan import Group, Layout

_compiling = threading.RLock()


Compiled = tuple[Boxed, tuple[int, ...]]  # a backward, and which of the saved values and gradients it takes
_MOST_PARTIAL = 16  # backwards that are kept for calls which bring gradients for some results only


class LazyBackward:
    """The backward of a plan; the last `tangents` values of a call are gradients of results, None where none came.

    The first call with these gradients compiles a backward for them, once; a compile that fails leaves the next call free
    to try.
    """

    def __init__(self, compile_backward: Callable[[tuple[int, ...]], Compiled], tangents: int) -> None:
        self._compile = compile_backward
        self._tangents = tangents
        self._run: dict[tuple[int, ...], Compiled] = {}

    @property
    def is_compiled(self) -> bool:
        """Whether a backward has run."""
        return bool(self._run)

    def __call__(self, values: list[Any]) -> Sequence[Any]:
        missing: tuple[int, ...] = ()
        first = len(values) - self._tangents
        if any(value is None for value in values[first:]):
            missing = tuple(k for k in range(self._tangents) if values[first + k] is None)
        run, taken = self._run.get(missing) or self._compile_once(missing)
        if missing:
            values[:] = [values[k] for k in taken]
        return run(values)

    def _compile_once(self, missing: tuple[int, ...]) -> Compiled:
        with _compiling:
            known = self._run.get(missing)
            if known is None:
                while len(self._run) >= _MOST_PARTIAL:
                    del self._run[next(iter(self._run))]
                known = self._run[missing] = self._compile(missing)
            return known


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
    # What was saved is without a history, and yet the gradients depend on the arguments: they must not pass for constants.
    tensors = (torch.empty(0, requires_grad=True), *(value for value in values if isinstance(value, torch.Tensor)))

    def call() -> Any:
        gradients = tuple(run(values))
        return tuple(item.detach() if isinstance(item, torch.Tensor) else item for item in gradients)

    return _Differentiated.apply(call, *tensors)  # type: ignore[no-untyped-call]


def saved_of(ctx: Any, groups: Sequence[Group], came: Sequence[bool]) -> list[torch.Tensor | None]:
    """The saved tensors. What groups without a gradient need is kept for a backward of theirs, as in eager."""
    touched = [group for group in groups if any(came[k] for k in group.tangents)]
    try:
        values = list(ctx.saved_tensors)
    except RuntimeError:  # freed by an earlier backward, or changed in place
        kept = getattr(ctx, "kept", {})
        if not all(group in kept for group in touched):
            raise
        found = {k: value for group in touched for k, value in kept[group].items()}
        if not torch_private.keeps_graph():
            ctx.kept = {group: those for group, those in kept.items() if group not in touched}
        return [_unchanged(*found[k]) if k in found else None for k in range(ctx.kept_count)]
    ctx.kept = {group: _kept(values, group) for group in groups if group not in touched}
    ctx.kept_count = len(values)
    return values


def _kept(values: Sequence[Any], group: Group) -> dict[int, tuple[torch.Tensor, int]]:
    """What a group needs, with versions. Detached: a saved result would keep its own node alive."""
    tensors = {k: values[k].detach() for k in group.saved if k < len(values) and values[k] is not None}
    return {k: (tensor, tensor._version) for k, tensor in tensors.items()}


def _unchanged(tensor: torch.Tensor, version: int) -> torch.Tensor:
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
            f"shape {tuple(tensor.shape)} is at version {tensor._version}; expected version {version} instead"
        )
    return tensor


def run_plainly(run: Boxed, values: list[Any]) -> Sequence[Any]:
    """Run a graph while autocast is on outside."""
    result: Sequence[Any] = torch_private.without_autocast(run, values)
    return result


def saved_view(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor to save that holds no history: a view would keep its base's."""
    return tensor.detach() if tensor._is_view() else tensor


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
