"""Arguments that share memory and are written → one common base for each such group, or a refusal that names two of them.

    x[:4], x[2:], w   one written     ▶  x, w        the graph makes the two slices itself, as views of x
    x[:3], x[3:], w   both written    ▶  as they are: nothing overlaps

Where gradients are needed the base must be the tensor that autograd knows as the base of all members, or as the one
that they were detached from. Elsewhere a flat view of their memory does, also for members of different dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NoReturn

import torch

from treeplay.torch_seam.modes import is_wrapper
from treeplay.torch_seam.tensors import shares_storage, storage_of
from treeplay.values.layout import Layout
from treeplay.values.location import Location
from treeplay.wrap.aot.plan.facts import Base, CommonBase, Member
from treeplay.wrap.aot.plan.overlap import byte_span, overlap
from treeplay.wrap.aot.tracing.findings import refusal_to_wrap


@dataclass(frozen=True, slots=True)
class WrittenArguments:
    """What a first trace told: the arguments whose data is written, and the line that wrote first."""

    arguments: frozenset[int]
    where: Location | None


def share_storage(samples: Sequence[Any]) -> bool:
    """Whether two samples lie in one storage."""
    storages = [storage_of(sample) for sample in samples if _is_plain(sample)]
    return len(set(storages)) < len(storages)


def find_bases(
    samples: Sequence[Any], positions: Sequence[int], names: Sequence[str], written: WrittenArguments
) -> tuple[Base, ...]:
    """The common bases that a call like this needs, by their first members. `positions` are the arguments to look at."""
    groups: list[list[int]] = []
    for position in positions:
        sample = samples[position]
        if not _is_plain(sample):
            continue
        group = next((group for group in groups if shares_storage(samples[group[0]], sample)), None)
        if group is None:
            groups.append([position])
        else:
            group.append(position)
    return tuple(
        _base(samples, group, names, written)
        for group in groups
        if written.arguments & set(group)
        and any(overlap(samples[one], samples[other]) for one, other in combinations(group, 2))
    )


def _is_plain(sample: Any) -> bool:
    return isinstance(sample, torch.Tensor) and not is_wrapper(sample) and sample.layout is torch.strided


def _base(samples: Sequence[Any], group: Sequence[int], names: Sequence[str], written: WrittenArguments) -> Base:
    def refuse(one: int, other: int, why: str) -> NoReturn:
        told = f"arguments `{names[one]}` and `{names[other]}` share memory, one of them is written, and {why}"
        raise refusal_to_wrap("write", told, written.where)

    recorded = {position: _base_of(samples[position]) for position in group}
    for position in group:
        if samples[position].is_conj() or samples[position].is_neg():
            refuse(
                *_sorted(position, next(k for k in group if k != position)),
                "one of them is a conjugate or negated view",
            )
    needy = [position for position in group if samples[position].requires_grad]
    with_base = [position for position in group if recorded[position] is not None]
    lead = with_base[0] if with_base else (needy or list(group))[0]
    whole = recorded[lead] if with_base else samples[lead]
    strays = [
        position
        for position in group
        if not (samples[position] is whole or recorded[position] is whole or _is_detached(samples[position], whole))
    ]
    is_fit = (
        bool(with_base) and not whole.requires_grad and _dtypes(samples, group) == {whole.dtype} and _is_dense(whole)
    )
    if not needy and (strays or not is_fit):
        return _flat(samples, group, written)
    if strays:
        why = "autograd does not know them as views of one tensor, though gradients are needed"
        refuse(*_sorted(lead, strays[0]), why)
    if not _is_dense(whole):
        refuse(group[0], group[1], "the tensor that they are views of has gaps, though gradients are needed")
    for position in group:
        if samples[position].dtype is not whole.dtype:
            other = next(item for item in group if item != position)
            refuse(*_sorted(position, other), "they differ in dtype, though gradients are needed")
    members = tuple(_member(position, samples[position], whole) for position in group)
    _refuse_writes_past_autograd(members, written, refuse)
    source = next((position for position in group if samples[position] is whole), None)
    is_member = source is not None
    return Base(
        CommonBase.MEMBER if is_member else CommonBase.RECORDED,
        source if source is not None else lead,
        layout_of(whole),
        whole.dtype,
        members,
        moved=(),
    )


def _base_of(sample: torch.Tensor) -> Any:
    """The tensor that a sample is a view of, unless one of the two was given other memory (`view.data = ...`) meanwhile."""
    base = sample._base
    return base if base is not None and shares_storage(sample, base) else None


def _sorted(one: int, other: int) -> tuple[int, int]:
    return min(one, other), max(one, other)


def _dtypes(samples: Sequence[Any], group: Sequence[int]) -> set[torch.dtype]:
    return {samples[position].dtype for position in group}


def _is_detached(sample: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether an argument has a life of its own for autograd, so that a detached view of the base is as good."""
    return sample._base is None and not sample.requires_grad and whole.requires_grad


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a copy of a tensor, which traces make of what is written, lies in its own storage as the tensor in its."""
    return tensor.storage_offset() == 0 and byte_span(tensor)[1] == tensor.numel() * tensor.element_size()


def _refuse_writes_past_autograd(members: Sequence[Member], written: WrittenArguments, refuse: Any) -> None:
    """Refuse a write that autograd sees beside one that it does not, to one memory: the history would be neither's."""
    seen = [member for member in members if member.argument in written.arguments]
    for one, other in combinations(seen, 2):
        if one.is_detached != other.is_detached:
            refuse(one.argument, other.argument, "only for one of them autograd sees the write")


def _member(position: int, sample: torch.Tensor, whole: torch.Tensor) -> Member:
    is_detached = whole.requires_grad and not sample.requires_grad
    return Member(position, layout_of(sample), sample.dtype, is_detached)


def _flat(samples: Sequence[Any], group: Sequence[int], written: WrittenArguments) -> Base:
    """A base from the start of the storage to the last byte of a member, in bytes where members differ in dtype."""
    end = max(byte_span(samples[position])[1] for position in group)
    dtypes = _dtypes(samples, group)
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.uint8
    layout = Layout((end // dtype.itemsize,), (1,), 0)
    members = tuple(
        Member(position, layout_of(samples[position]), samples[position].dtype, is_detached=False) for position in group
    )
    moved = tuple(position for position in group if position in written.arguments)
    return Base(CommonBase.FLAT, group[0], layout, dtype, members, moved)


def layout_of(tensor: torch.Tensor) -> Layout:
    """How a tensor whose sizes are known lies."""
    return Layout(tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()))


def take_base(base: Base, samples: Sequence[Any]) -> torch.Tensor:
    """The common base of a call like the sample's."""
    source: torch.Tensor = samples[base.source]
    if base.whole is CommonBase.MEMBER:
        return source
    if base.whole is CommonBase.RECORDED:
        recorded: Any = source._base
        return recorded  # type: ignore[no-any-return]
    return flat_base(source, base.layout, base.dtype)


def flat_base(source: torch.Tensor, layout: Layout, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor over the memory of `source`, of which autograd knows nothing."""
    fresh = source.new_empty(0, dtype=dtype)
    return fresh.set_(source.untyped_storage(), layout.offset, layout.shape, layout.stride)


def view_of_base(base: torch.Tensor, member: Member) -> torch.Tensor:
    """A member made anew from its base. Runs inside the trace, which takes `as_strided` only as the first step."""
    layout, dtype = member.layout, member.dtype
    if dtype is base.dtype:
        view = base.as_strided(layout.shape, layout.stride, layout.offset)
        return view.detach() if member.is_detached else view
    # Each element as a last dimension of bytes, of which `view` makes one number.
    width = dtype.itemsize
    stride = [step * width for step in layout.stride]
    places = base.as_strided((*layout.shape, width), (*stride, 1), layout.offset * width)
    return places.view(dtype).squeeze(-1)
