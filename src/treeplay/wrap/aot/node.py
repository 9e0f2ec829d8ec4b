"""What generated functions call: small helpers with a fixed job, and the backward that is compiled when first needed."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.errors import InternalError, UsageError
from treeplay.locks import shared_lock
from treeplay.torch_seam import autograd, fakes, flags
from treeplay.torch_seam.dynamo import tensor_check
from treeplay.torch_seam.operators import ExcludeKeys, keys_above_operators
from treeplay.values.block import SavedLayout
from treeplay.values.layout import Layout
from treeplay.wrap.aot.block import from_block, lying_apart, opened
from treeplay.wrap.aot.compilers import Boxed, follow
from treeplay.wrap.aot.plan import BackwardGroup

_compiling = shared_lock()
_ABOVE = keys_above_operators()
_is_none = functools.partial(operator.is_, None)

Compiled = tuple[Boxed, tuple[int, ...]]  # a backward, and which of the saved values and gradients it takes
_MOST_PARTIAL = 16  # backwards that are kept for calls which bring gradients for some results only


@dataclass(frozen=True, eq=False)
class Needs:
    """What a result needs for its backward: what runs the graph, and what gives gradients that lead on.

    Kept by the call function, and by each result on its own. The node's class only refers to it: a class is a cycle, and what
    it keeps waits for the garbage collector."""

    run: Boxed
    onward: Callable[..., Any] | None


class _Fitted:
    """A compiled backward that takes some of a call's values, laid out as those that it was compiled for."""

    def __init__(self, compiled: Compiled, values: Sequence[Any]) -> None:
        self.run, self.taken = compiled
        self.compiled = self.run  # which owns what it tells of
        follow(self.run, self, _Fitted._rebind)
        given = [values[k] for k in self.taken]
        self.fits: Callable[..., bool] = _always
        self._strides: tuple[tuple[int, ...] | None, ...] = ()
        if all(value.layout is torch.strided for value in given if isinstance(value, torch.Tensor)):
            self._strides = tuple(value.stride() if isinstance(value, torch.Tensor) else None for value in given)
            self.fits = _check(given)

    def _rebind(self, now: Boxed) -> None:
        self.run = now

    def lay_out(self, values: list[Any]) -> None:
        """Lay out what differs as when this was compiled: hooks of the user's may unpack a saved tensor in another way."""
        for at, (value, stride) in enumerate(zip(values, self._strides, strict=False)):
            if stride is not None and value.layout is torch.strided and value.stride() != stride:
                first = value  # what was one slice, shown several times, still is
                for dimension in (d for d, step in enumerate(stride) if step == 0 and value.size(d) > 1):
                    first = first.narrow(dimension, 0, 1)
                values[at] = laid_out(first, Layout(tuple(first.size()), stride, 0)).expand(value.size())


class _FittedToBlock:
    """A compiled backward that takes the block in which a forward left some of the values."""

    def __init__(self, fitted: _Fitted, layout: SavedLayout, first: int, values: Sequence[Any]) -> None:
        self.layout = layout
        in_block = getattr(fitted.compiled, "in_block", None)
        # What is not recorded takes the values one by one, and each call makes tensors of them.
        one_by_one: Boxed = lambda args: fitted.run(args)  # noqa: E731 - by now
        self.run: Boxed = from_block(one_by_one, layout, first) if in_block is None else in_block(layout, first)
        self._followed = self.run  # which owns what it tells of
        follow(self.run, self, _FittedToBlock._rebind)
        is_strided = all(value.layout is torch.strided for value in values if isinstance(value, torch.Tensor))
        self.fits: Callable[..., bool] = _check(values) if is_strided else _always

    def _rebind(self, now: Boxed) -> None:
        self.run = now


class LazyBackward:
    """The backward of a plan; the last `tangents` values of a call are gradients of results, None where none came.

    The first call with these gradients compiles a backward for them and for how the values lie, once; a compile that fails
    leaves the next call free to try. Values that only this backward sees may come in a block, in the place `inner` where the
    first of them would be; then what lies in it comes behind all others.
    """

    def __init__(
        self,
        compile_backward: Callable[[tuple[int, ...], Sequence[Any]], Compiled],
        tangents: int,
        *,
        inner: int | None = None,
    ) -> None:
        self._compile = compile_backward
        self._tangents = tangents
        self._inner = inner
        self._run: dict[tuple[int, ...], _Fitted] = {}
        self._whole: _Fitted | None = None
        self._to_block: _FittedToBlock | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether a backward has run."""
        return bool(self._run)

    def __call__(self, values: list[Any]) -> Sequence[Any]:
        if self._inner is not None and type(values[-1]) is SavedLayout:
            return self._from_block(values.pop(), values, self._inner)
        if any(map(_is_none, values[len(values) - self._tangents :])):  # no name may keep a gradient alive
            return self._partial(values)
        fitted = self._whole or self._compile_once((), values)
        if not fitted.fits(*values):
            fitted.lay_out(values)
        return fitted.run(values)

    def _from_block(self, layout: SavedLayout, values: list[Any], first: int) -> Sequence[Any]:
        fitted = self._to_block
        if not any(map(_is_none, values[len(values) - self._tangents :])):
            if fitted is None or (fitted.layout is not layout and fitted.layout != layout):
                fitted = self._fit_to_block(layout, values, first)
            if fitted is not None and fitted.fits(*values):
                return fitted.run(values)
        block = values[first + layout.apart]
        values[:] = opened(values, layout, first)
        missing = self._missing(values)
        if missing and missing not in self._run:
            self._compile_once(missing, lying_apart(values, block))
        del block  # so that it can die inside the graph
        return self(values)

    def _fit_to_block(self, layout: SavedLayout, values: Sequence[Any], first: int) -> _FittedToBlock | None:
        apart = opened(values, layout, first)
        whole = self._whole or self._compile_once((), lying_apart(apart, values[first + layout.apart]))
        if not whole.fits(*apart):  # what differs is to be laid out anew, one by one
            return None
        with _compiling:
            fitted = self._to_block
            if fitted is None or fitted.layout != layout:
                fitted = self._to_block = _FittedToBlock(whole, layout, first, values)
            return fitted

    def _partial(self, values: list[Any]) -> Sequence[Any]:
        missing = self._missing(values)
        fitted = self._run.get(missing) or self._compile_once(missing, values)
        values[:] = [values[k] for k in fitted.taken]
        if not fitted.fits(*values):
            fitted.lay_out(values)
        return fitted.run(values)

    def _missing(self, values: Sequence[Any]) -> tuple[int, ...]:
        first = len(values) - self._tangents
        return tuple(k for k in range(self._tangents) if values[first + k] is None)

    def _compile_once(self, missing: tuple[int, ...], values: Sequence[Any]) -> _Fitted:
        with _compiling:
            known = self._run.get(missing)
            if known is None:
                while len(self._run) >= _MOST_PARTIAL:
                    del self._run[next(iter(self._run))]
                known = self._run[missing] = _Fitted(self._compile(missing, values), values)
            if not missing:
                self._whole = known
            return known


def _always(*_: Any) -> bool:
    return True


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
    with fakes.mode_of_fake(fake):
        return torch.empty(offset + span + 1, dtype=value.dtype, device=value.device).as_strided(
            value.shape, stride, offset
        )


def note_write(tensor: torch.Tensor) -> None:
    """Tell autograd that a tensor is written by the graph."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def note_every_write(tensors: list[torch.Tensor]) -> None:
    """The same for many."""
    autograd.increment_versions([tensor for tensor in tensors if not tensor.is_inference()])


class _Differentiated(torch.autograd.Function):
    """Gradients that may be asked for their own gradient, which raises."""

    @staticmethod
    def forward(ctx: Any, call: Callable[[], Any], why: str | None, *tensors: Any) -> Any:
        ctx.because = f", since {why}" if why else ""
        return call()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UsageError(
            f"a compiled function was differentiated twice: its backward has no backward of its own{ctx.because}. "
            "Fix: compute this part without treeplay"
        )


def differentiated(run: Boxed, values: list[Any], why: str | None) -> Any:
    """Run the backward under create_graph: its gradients need gradients and cannot be differentiated, and `why` not."""
    # What was saved is without a history, and yet the gradients depend on the arguments: they must not pass for constants.
    tensors = (torch.empty(0, requires_grad=True), *(value for value in values if isinstance(value, torch.Tensor)))

    def call() -> Any:
        gradients = tuple(run(values))
        return tuple(item.detach() if isinstance(item, torch.Tensor) else item for item in gradients)

    return _Differentiated.apply(call, why, *tensors)  # type: ignore[no-untyped-call]


def differentiated_again(ctx: Any, gradients: Sequence[Any]) -> Any:
    """The same for a backward that opens and builds tensors: the whole of it is run."""
    saved = (torch.empty(0, requires_grad=True), *ctx.saved_tensors, *gradients)  # the first as above
    tensors = tuple(value for value in saved if isinstance(value, torch.Tensor))
    backward = ctx._forward_cls.backward
    why = "it takes or returns tensors made of other tensors"
    return _Differentiated.apply(lambda: backward(ctx, *gradients), why, *tensors)  # type: ignore[no-untyped-call]


def saved_of(ctx: Any, groups: Sequence[BackwardGroup], came: Sequence[bool]) -> list[torch.Tensor | None]:
    """The saved tensors. What groups without a gradient need is kept for a backward of theirs, as in eager."""
    touched = [group for group in groups if any(came[k] for k in group.tangents)]
    try:
        values = list(ctx.saved_tensors)
    except RuntimeError:  # freed by an earlier backward, or changed in place
        kept = getattr(ctx, "kept", {})
        if not all(group in kept for group in touched):
            raise
        found = {k: value for group in touched for k, value in kept[group].items()}
        if not autograd.keeps_graph():
            ctx.kept = {group: those for group, those in kept.items() if group not in touched}
        return [unchanged(*found[k]) if k in found else None for k in range(ctx.kept_count)]
    ctx.kept = {group: _kept(values, group) for group in groups if group not in touched}
    ctx.kept_count = len(values)
    return values


def _kept(values: Sequence[Any], group: BackwardGroup) -> dict[int, tuple[torch.Tensor, int]]:
    """What a group needs, with versions. Detached: a saved result would keep its own node alive."""
    tensors = {k: values[k].detach() for k in group.saved if k < len(values) and values[k] is not None}
    return {k: (tensor, tensor._version) for k, tensor in tensors.items()}


def unchanged(tensor: torch.Tensor, version: int) -> torch.Tensor:
    """A tensor that is still at a version; else autograd's own error."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
            f"shape {tuple(tensor.shape)} is at version {tensor._version}; expected version {version} instead"
        )
    return tensor


def run_plainly(run: Callable[..., Any], *given: Any) -> Any:
    """Run a graph while autocast is on outside."""
    with flags.without_autocast():
        return run(*given)


def missing(layout: Layout, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A gradient that nobody gave, as the zeros that the backward computes with."""
    return torch.empty_strided(layout.shape, layout.stride, dtype=dtype, device=device).zero_()


def laid_out(gradient: torch.Tensor, layout: Layout) -> torch.Tensor:
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
        with ExcludeKeys(_ABOVE):
            tensor.copy_(value)
        return
    with autograd.preserving_version(tensor):
        tensor.detach().copy_(value.detach())


def wrong_count(expected: int, values: Sequence[Any], place: str) -> InternalError:
    """A graph returned another number of values than its plan says."""
    return InternalError(f"the {place} returned the wrong number of values: expected {expected}, got {len(values)}")


def late_write() -> UsageError:
    """The backward writes to an argument that needs a gradient, under create_graph."""
    return UsageError(
        "the backward of a compiled function writes to an argument that needs a gradient, and create_graph=True asks for "
        "a history of that write, which is not kept. Fix: compute this part without treeplay, or without create_graph"
    )
