"""What generated functions call first: do the arguments share memory as they did at the trace? If not, nothing runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from treeplay.errors import PatternChanged, UsageError
from treeplay.torch_seam.tensors import shares_storage
from treeplay.wrap.aot.plan.bases import flat_base, layout_of
from treeplay.wrap.aot.plan.facts import Base, Check, CommonBase, Member
from treeplay.wrap.aot.plan.overlap import length, overlap, overlap_across_storages

_FEW = 8  # inputs that moved and are looked at one by one
_FIX = "Fix: wrap the function again for this pattern of arguments"


def check_of(sample: Any) -> Check:
    """What an argument is, as far as it decides how a call is tracked."""
    if not isinstance(sample, torch.Tensor):
        return Check.OTHER
    return Check.NEEDS_GRADIENT if sample.requires_grad else Check.TENSOR


def check_arguments(args: Sequence[Any], checks: Sequence[Check], names: Sequence[str]) -> None:
    """Refuse a call with a tensor where none was at the trace, the reverse, or one that needs a gradient only now."""
    if len(args) != len(checks):
        raise UsageError(f"expected {len(checks)} arguments ({', '.join(names[: len(checks)])}), found {len(args)}")
    for at, (value, check, name) in enumerate(zip(args, checks, names, strict=True)):
        found = check_of(value)
        if found is check or (check is Check.NEEDS_GRADIENT and found is Check.TENSOR):
            continue
        if check is Check.TENSOR and found is Check.NEEDS_GRADIENT and not torch.is_grad_enabled():
            continue
        told = found.value if found is not Check.OTHER else type(value).__name__
        raise UsageError(
            f"argument {at} (`{name}`) was {check.value} when this was traced, and is now {told}. "
            "Fix: wrap the function again for arguments like these, or pass what it was traced with"
        )


def check_copy(one: Any, other: Any, names: tuple[str, str]) -> None:
    """Refuse a call in which two positions do not hold one object, as they did at the trace."""
    if one is not other:
        raise PatternChanged(
            f"{names[0]} and {names[1]} were one tensor when this was traced, and one of them is written; "
            f"now they are two. {_FIX}"
        )


def one_object(names: tuple[str, str]) -> PatternChanged:
    """The error for two positions that hold one tensor by now, whose shape changes in place."""
    return PatternChanged(f"{names[0]} and {names[1]} are one tensor, and its shape changes in place. {_FIX}")


def begins_elsewhere(name: str) -> PatternChanged:
    """The error for an argument that is laid out anew and begins elsewhere in its memory than at the trace."""
    return PatternChanged(
        f"{name} begins elsewhere in its memory than when this was traced, and is laid out anew. {_FIX}"
    )


def check_apart(one: torch.Tensor, other: torch.Tensor, names: tuple[str, str]) -> None:
    """Refuse a call in which a written argument shares memory with another, as it did not at the trace."""
    if overlap(one, other) or overlap_across_storages(one, other):
        raise PatternChanged(
            f"{names[0]} and {names[1]} share memory, and one of them is written; when this was traced they were "
            f"apart. {_FIX}"
        )


class AllApart:
    """The same check for many inputs: by address, and again only for those that lie elsewhere than in the last call.

    `lengths` are how many bytes each input spans, in the order `written`, `others`; None for one that is measured in each call.
    """

    def __init__(
        self, written: Sequence[int], others: Sequence[int], lengths: Sequence[int | None], names: dict[int, str]
    ) -> None:
        self.written = frozenset(written)
        self.order = (*written, *others)
        self.names = names
        self.lengths = [nbytes or 0 for nbytes in lengths]
        self.measured = [at for at, nbytes in enumerate(lengths) if nbytes is None]
        self.spans: list[tuple[int, int]] = []  # where each lay in the last call that passed, in that order
        self.last: list[int] = []  # where each began, and how many bytes the measured ones spanned

    def __call__(self, args: Sequence[Any]) -> None:
        now = [args[k].data_ptr() for k in self.order]
        if self.measured:
            now += [length(args[self.order[at]]) for at in self.measured]
        if now == self.last:
            return
        lengths, count = list(self.lengths), len(self.order)
        for at, nbytes in zip(self.measured, now[count:], strict=True):
            lengths[at] = nbytes
        changed = [at for at, (value, last) in enumerate(zip(now, self.last, strict=False)) if value != last]
        moved = {at if at < count else self.measured[at - count] for at in changed}
        if self.spans and len(moved) <= _FEW:
            spans = list(self.spans)
            for at in moved:
                spans[at] = (now[at], now[at] + lengths[at])
            self._check_moved(args, spans, moved)
        else:
            spans = [(start, start + nbytes) for start, nbytes in zip(now, lengths, strict=False)]
            self._check(args, spans)
        self.spans, self.last = spans, now

    def _check_moved(self, args: Sequence[Any], spans: list[tuple[int, int]], moved: Iterable[int]) -> None:
        """The inputs that moved, against all others: a batch is new in each call, and weights are many."""
        for at in moved:
            start, end = spans[at]
            for other in [other for other, (low, high) in enumerate(spans) if low < end and start < high]:
                if other != at:
                    self._check_pair(args, self.order[at], self.order[other])

    def _check(self, args: Sequence[Any], spans: list[tuple[int, int]]) -> None:
        active: list[tuple[int, int, int]] = []
        for start, end, k in sorted((*span, k) for span, k in zip(spans, self.order, strict=True)):
            active = [other for other in active if other[1] > start]
            for other in active:
                self._check_pair(args, k, other[2])
            active.append((start, end, k))

    def _check_pair(self, args: Sequence[Any], one: int, two: int) -> None:
        one, two = sorted((one, two))
        # Parts of one argument go by its name, and may share memory.
        if self.names[one] != self.names[two] and (one in self.written or two in self.written):
            check_apart(args[one], args[two], (self.names[one], self.names[two]))


def common_base(base: Base, members: Sequence[torch.Tensor], names: Sequence[str]) -> torch.Tensor:
    """The tensor that stands for `members`, if they lie in it as they did at the trace."""
    places = [member.argument for member in base.members]
    source = members[places.index(base.source)]
    if base.whole is CommonBase.FLAT:
        whole = source
    else:
        whole = source if base.whole is CommonBase.MEMBER else source._base  # type: ignore[assignment]
        if whole is None or layout_of(whole) != base.layout or whole.dtype is not base.dtype:
            raise _another(names)
    for tensor, member in zip(members, base.members, strict=True):
        if not _fits(tensor, member, base, whole):
            raise _another(names)
    return flat_base(source, base.layout, base.dtype) if base.whole is CommonBase.FLAT else whole


def _fits(tensor: torch.Tensor, member: Member, base: Base, whole: torch.Tensor) -> bool:
    if not shares_storage(tensor, whole) or layout_of(tensor) != member.layout:
        return False
    if base.whole is CommonBase.FLAT:
        return not tensor.requires_grad
    return (member.is_detached and not tensor.requires_grad) or tensor is whole or tensor._base is whole


def _another(names: Sequence[str]) -> PatternChanged:
    return PatternChanged(
        f"{', '.join(names)} shared memory when this was traced, and some of them are written; now they share it in "
        f"another way, or not at all. {_FIX}"
    )


def other_kernels() -> PatternChanged:
    """The error for a call in which a mode chooses other kernels."""
    return PatternChanged(
        "kernels of attention, or settings of cuDNN, are chosen otherwise than when this was compiled"
    )


def needs_gradient(given: Sequence[Any], frozen: Mapping[int, str]) -> PatternChanged:
    """The error for a frozen argument that needs a gradient."""
    told = next(name for at, name in frozen.items() if given[at].requires_grad)
    return PatternChanged(f"{told} needed no gradient when this was compiled, and needs one now")
