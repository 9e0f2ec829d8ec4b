"""The saved values of a node whose results fall into groups, each with a backward of its own: what one group has used up, the
others still have, as in eager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treeplay.torch_seam import autograd
from treeplay.torch_seam.tensors import shares_storage
from treeplay.wrap.aot.plan.facts import BackwardGroup


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


def counted_with(value: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
    """A saved value that lies in the memory of a tensor which others see, such that what they write there counts for it.

    It has no history: it would keep that of what is shown, which may be the saved value's own node."""
    base = value._base if value._is_view() else None
    if base is not None and (base is shown or base is shown._base):
        return value.detach()
    is_known = value is shown or value is shown._base
    if is_known or value.dtype is not shown.dtype or shown.is_inference() or not shares_storage(value, shown):
        return value if base is None else value.detach()
    return shown.detach().as_strided(value.shape, value.stride(), value.storage_offset())
