"""Operators that are told where in the memory of their first argument to begin."""

from __future__ import annotations

from typing import Any

import torch

from treeplay.torch_seam.schemas import by_name
from treeplay.torch_seam.tensors import storage_of
from treeplay.trace.run.tape import InputSeen, TracedValue, TraceTape, spoken_name
from treeplay.values.layout import span
from treeplay.values.location import Location

aten = torch.ops.aten
BEGINS = frozenset({aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default})


def from_start(
    tape: TraceTape, func: Any, value: TracedValue, args: Any, kwargs: dict[str, Any], where: Location | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an operator that is told where in the memory of an input to begin, counted from where that input
    begins: so the graph holds for inputs that begin elsewhere, and lowerings need not know where."""
    given = by_name(func, args, kwargs)
    offset = given.get("storage_offset")
    owners = [seen for seen in tape.inputs if storage_of(seen.value.fake) == storage_of(value.fake)]
    if offset is None or not owners:
        return args, kwargs
    first, last = offset, offset + span(given["size"], given["stride"])
    for seen in owners:
        start = int(seen.value.fake.storage_offset())
        end = start + span(seen.value.fake.shape, seen.value.fake.stride())
        is_inside = seen.value.fake.dtype == value.fake.dtype and start <= first and last <= end
        if is_inside and func is not aten.as_strided_scatter.default:  # whose result lies as the whole memory does
            seen.begins = start
            return (_piece(tape, seen, first - start, end - start), given["size"], given["stride"]), {}
    if func is aten.as_strided_scatter.default:
        why, advice = "copies an argument with all the memory around it", "write to `as_strided` of a clone"
    else:
        why = "is told where in an argument's memory to begin, and takes what lies outside of the argument"
        advice = "pass the tensor that all of it lies in"
    raise tape.refuse(spoken_name(func), why, advice, where)


def _piece(tape: TraceTape, seen: InputSeen, first: int, length: int) -> torch.Tensor:
    """The memory of an input from its element `first` on, in one dimension."""
    piece, node = seen.value.fake, seen.value.node
    with tape.fake_mode:
        for op, rest in ((aten.as_strided.default, ((length,), (1,))), (aten.slice.Tensor, (0, first, length))):
            piece, node = op(piece, *rest), tape.call(op, (node, *rest), where=None)
            tape.add_tensor(piece, node, {})
    return piece
