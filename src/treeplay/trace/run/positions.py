"""Writes at a position that a tensor tells, as a recording can have them: torch asks the host for the position.

x[p] = y             ▶   x.index_put_((p[None],), y[None])
x[0, p, 1:] = y      ▶   x.movedim(1, -1)[0, 1:].movedim(-1, 0).index_put_((p[None],), y[None])

An index that is out of range still fails there. While the rest of the index is taken, the dimensions of positions are the last
ones: so each step is the one that torch takes, which the log of the first run has.

On the CPU only: on a GPU, where eager raises for a position out of range, the index would end the use of the device. What is
read at a position is a view, of which no recording knows where it begins.
"""

from __future__ import annotations

from typing import Any

import torch

from treeplay.torch_seam.modes import is_of_transform
from treeplay.trace.numbers.made_of_numbers import takes_any

INSTEAD = {
    "indexing": "index with a tensor of one dimension: x[p[None]] = y, and x[p[None]].squeeze(0) for x[p]",
    "select": "use x.index_select(dim, p.view(1)).squeeze(dim)",
}
"""What to do instead of a call for which torch asks the host for a position."""
_PLAIN: Any = torch.Tensor.__setitem__
_INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})
_OTHERS = (int, torch.SymInt, slice, type(None), type(...))


def set_item(x: torch.Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`."""
    parts = index if isinstance(index, tuple) else (index,)
    at = {k: part for k, part in enumerate(parts) if _is_position(part)}
    others = [part for k, part in enumerate(parts) if k not in at]
    if not at or not all(_is_plain(part) for part in others) or not _may_be_put(x, value):
        _PLAIN(x, index, value)
        return
    if type(value) in (int, float) and takes_any(x, value):  # made first, as of a number that varies
        value = torch.tensor(value, dtype=x.dtype, device="cpu")
    rest = x.dim() - sum(part is not None and part is not ... for part in parts)
    # The dimension of `x` that each part is about, and of what is left without the positions.
    begins = [sum(rest if p is ... else p is not None for p in parts[:k]) for k in at]
    first, last = [*range(len(at))], [*range(-len(at), 0)]
    view = x.movedim(begins, last)
    view = view[tuple(each for part in others for each in ([slice(None)] * rest if part is ... else [part]))]
    view = view.movedim(last, first)
    row = torch.empty(view.shape[len(at) :], dtype=x.dtype, device=x.device)
    if row.numel() == 0:  # nothing is written, and no index looked at
        _PLAIN(x, index, value)
        return
    row[...] = value  # as torch copies it: cast and broadcast
    # Copies, since the program may count a position on, and autograd has saved it by then; and of one dimension each, since
    # torch's own tracing takes no index without any.
    positions = [position.to(torch.int64, copy=True).view(1) for position in at.values()]
    torch.ops.aten.index_put_(view, positions, row.unsqueeze(0))


def _is_position(part: Any) -> bool:
    is_one = isinstance(part, torch.Tensor) and part.dim() == 0 and part.dtype in _INTEGERS
    return is_one and part.device.type == "cpu"


def _is_plain(part: Any) -> bool:
    return isinstance(part, _OTHERS) and not isinstance(part, bool)


def _may_be_put(x: torch.Tensor, value: Any) -> bool:
    """Whether the two ways of writing are the same, also in what they raise for."""
    if x.device.type != "cpu" or x.layout is not torch.strided or x.is_quantized or is_of_transform(x):
        return False
    if x.is_conj() or x.is_neg() or 0 in x.stride():
        return False
    return not isinstance(value, torch.Tensor) or not (is_of_transform(value) or _base(value) is _base(x))


def _base(x: torch.Tensor) -> torch.Tensor:
    return x if x._base is None else x._base
