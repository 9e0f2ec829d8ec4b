"""The backward of a compiled graph, which is compiled when it is first needed.

What compiling takes into account is known only then: for which results gradients came, and how the saved values lie in memory.
A backward is kept for each set of gradients; values that lie otherwise than those it was compiled for are laid out anew.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.locks import shared_lock
from treeplay.torch_seam import fakes
from treeplay.torch_seam.aot import unwanted_inputs
from treeplay.torch_seam.dynamo import tensor_check
from treeplay.torch_seam.tensors import strided_copy
from treeplay.values.block import SavedLayout
from treeplay.values.boxed import Boxed
from treeplay.wrap.aot.calls.block import from_block, lying_apart, open_block
from treeplay.wrap.aot.compilers import follow

_compiling = shared_lock()
_is_none = functools.partial(operator.is_, None)
Compiled = tuple[Boxed, tuple[int, ...]]  # a backward, and which of the saved values and gradients it takes
_MOST_PARTIAL = 16  # backwards that are kept for calls which bring gradients for some results only


class _Followed:
    """Runs whatever a compiled backward tells of."""

    def __init__(self, compiled: Boxed) -> None:
        self.run = compiled
        self.compiled = compiled  # which owns what it tells of
        follow(compiled, self, _Followed._rebind)

    def _rebind(self, now: Boxed) -> None:
        self.run = now


class _Fitted(_Followed):
    """A compiled backward that takes some of a call's values, laid out as those that it was compiled for."""

    def __init__(self, compiled: Compiled, values: Sequence[Any]) -> None:
        run, self.taken = compiled
        super().__init__(run)
        given = [values[k] for k in self.taken]
        self.fits: Callable[..., bool] = _always
        self._layouts: tuple[tuple[torch.Size, tuple[int, ...]] | None, ...] = ()
        if all(value.layout is torch.strided for value in given if isinstance(value, torch.Tensor)):
            self._layouts = tuple(
                (value.shape, value.stride()) if isinstance(value, torch.Tensor) else None for value in given
            )
            self.fits = _check(given)

    def lies_alike(self, values: Sequence[Any]) -> bool:
        """Whether values lie as those that this was compiled for. They may differ from those in what it does not matter for,
        and do not fit: attention leaves its seeds on the CPU until it is captured, and a mode may be on in the caller."""
        return all(
            layout is None or (value.layout is torch.strided and (value.shape, value.stride()) == layout)
            for value, layout in zip(values, self._layouts, strict=False)
        )

    def lay_out(self, values: list[Any]) -> None:
        """Lay out what differs as when this was compiled: hooks of the user's may unpack a saved tensor in another way."""
        if self.lies_alike(values):
            self.fits = _check(values)
            return
        for at, (value, layout) in enumerate(zip(values, self._layouts, strict=False)):
            if layout is not None and value.layout is torch.strided and value.stride() != layout[1]:
                values[at] = strided_copy(value, layout[1])


class _FittedToBlock(_Followed):
    """A compiled backward that takes the block in which a forward left some of the values: of a call's values with the block,
    those at `places`, if not all."""

    def __init__(self, fitted: _Fitted, layout: SavedLayout, first: int, count: int) -> None:
        self.layout = layout
        self.places: list[int] | None = None
        if len(fitted.taken) < count:
            taken = set(fitted.taken)
            self.places = [place for place, at in enumerate(layout.order(first, count)) if at is None or at in taken]
            layout = SavedLayout(
                tuple(part for at, part in enumerate(layout.parts, first) if at in taken), layout.nbytes
            )
            first = sum(at < first for at in taken)
        in_block = getattr(fitted.compiled, "in_block", None)
        # What is not recorded takes the values one by one, and each call makes tensors of them.
        one_by_one: Boxed = lambda args: fitted.run(args)  # noqa: E731 - by now
        super().__init__(from_block(one_by_one, layout, first) if in_block is None else in_block(layout, first))
        self.fits: Callable[..., bool] = _always

    def chosen(self, values: Sequence[Any]) -> Sequence[Any]:
        """Those of a call's values that this takes."""
        return values if self.places is None else [values[place] for place in self.places]

    def takes(self, layout: SavedLayout, values: Sequence[Any]) -> bool:
        """Whether a call's values are like those that this was fitted to."""
        return (self.layout is layout or self.layout == layout) and self.fits(*self.chosen(values))

    def fit_to(self, values: Sequence[Any]) -> None:
        """From here on, values of a call that are like these are taken."""
        values = self.chosen(values)
        is_strided = all(value.layout is torch.strided for value in values if isinstance(value, torch.Tensor))
        self.fits = _check(values) if is_strided else _always


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
        self._to_block: dict[tuple[int, ...], _FittedToBlock] = {}

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
        missing = self._missing(values)
        fitted = self._to_block.get(missing)
        if fitted is None or not fitted.takes(layout, values):
            fitted = self._fit_to_block(missing, layout, values, first)
        if fitted is None:
            values[:] = open_block(values, layout, first)
            return self(values)
        values[:] = fitted.chosen(values)
        return fitted.run(values)

    def _fit_to_block(
        self, missing: tuple[int, ...], layout: SavedLayout, values: Sequence[Any], first: int
    ) -> _FittedToBlock | None:
        apart = open_block(values, layout, first)
        known = self._run.get(missing) if missing else self._whole
        fitted = known or self._compile_once(missing, lying_apart(apart, values[first + layout.apart]))
        given = [apart[k] for k in fitted.taken]
        if not fitted.fits(*given) and not fitted.lies_alike(given):  # what differs is to be laid out anew, one by one
            return None
        with _compiling:
            to_block = self._to_block.get(missing)
            if to_block is None or to_block.layout != layout:
                to_block = self._to_block[missing] = _FittedToBlock(fitted, layout, first, len(apart))
            to_block.fit_to(values)
            return to_block

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
                    # The oldest; that for all gradients is in `_whole` besides.
                    oldest = next(iter(self._run))
                    del self._run[oldest]
                    if oldest:
                        self._to_block.pop(oldest, None)
                known = self._run[missing] = _Fitted(self._compile(missing, values), values)
            if not missing:
                self._whole = known
            return known


class RunFor:
    """Runs a backward that acts for some inputs only for those whose gradients are wanted: `whole` for all, and without a set
    of inputs what `make` gives for it."""

    def __init__(self, whole: Boxed, make: Callable[[tuple[int, ...]], Boxed]) -> None:
        self._whole, self._make = whole, make
        self._made: dict[tuple[int, ...], Boxed] = {}

    def __call__(self, ctx: Any) -> Boxed:
        unwanted = unwanted_inputs(ctx)
        if not unwanted:
            return self._whole
        run = self._made.get(unwanted)
        if run is None:
            with _compiling:
                while len(self._made) >= _MOST_PARTIAL:
                    del self._made[next(iter(self._made))]
                run = self._made.setdefault(unwanted, self._make(unwanted))
        return run


def _always(*_: Any) -> bool:
    return True


def _check(values: Sequence[Any]) -> Callable[..., bool]:
    """What tells whether tensors are like those of `values`; generators, and what stands for tokens, are not looked at."""
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
