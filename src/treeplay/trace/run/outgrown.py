"""`out=` with a tensor of another size than the result, which the operator gives the size of the result.

    out = torch.empty(0)                    out = empty_strided(size and strides of the result)
    torch.mul(x, 2, out=out)          ─▶    torch.mul(x, 2, out=out)

A tensor that the program has just made, that nothing has been done with, and whose contents are nothing, may as well be made
with that size. Any other would have to change its size in each replay.

torch's rules for tensors without data lay it out without gaps in the order of the dimensions, whatever lies in another order in
eager. The first run tells how it lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam.schemas import leaves_of
from treeplay.torch_seam.tensors import storage_of
from treeplay.trace.run.layouts import Looks, ShapeAndStride
from treeplay.trace.run.tape import TraceTape, spoken_name
from treeplay.values.location import Location

aten = torch.ops.aten
_EMPTY = frozenset(
    (aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default)
)

_WHY = (
    "gives the tensor at `out` another size, which a replay could not do for a tensor that is more than new and empty"
)
_UNTOLD = (
    "gives the tensor at `out` another size, and the run before this one does not tell in which order it lies then"
)
_ADVICE = "make that tensor with the size of the result"


def outs_of(func: Any, kwargs: Mapping[str, Any]) -> list[tuple[torch.Tensor, ShapeAndStride]]:
    """The tensors that an operator is given to write its results into, with how they lie."""
    if not kwargs or not func._schema.is_mutable:
        return []
    names = [item.name for item in func._schema.arguments if item.kwarg_only and item.alias_info is not None]
    given = leaves_of([kwargs.get(name) for name in names])
    return [(out, _layout(out)) for out in given if isinstance(out, torch.Tensor)]


def outgrown(outs: Sequence[tuple[torch.Tensor, ShapeAndStride]]) -> list[int]:
    """The positions of those that lie in another way by now."""
    return [position for position, (out, before) in enumerate(outs) if _layout(out) != before]


def outgrow(
    tape: TraceTape, func: Any, fake: torch.Tensor, told: Looks | None, args: Sequence[Any], where: Location | None
) -> None:
    """Make a tensor that an operator has just given another size with that size, or refuse. `told` is how it lay in the first
    run, if that is known."""
    if told is not None and told[0] == fake.shape:
        with tape.fake_mode:
            fake.as_strided_(told[0], told[1])
    elif any(isinstance(arg, torch.Tensor) and not arg.is_contiguous() for arg in leaves_of(args)):
        raise tape.refuse(spoken_name(func), _UNTOLD, _ADVICE, where)
    known = tape.values.get(id(fake))  # an input is known by the tensor that Python holds
    is_new = known is not None and not known.is_input and storage_of(fake) not in tape.mutated
    nodes = _made_as(known.node, fake) if known is not None and is_new else []
    for node in nodes:  # the operator's own is yet to come
        tape.describe(node, fake)
    if not nodes or tape.births.get(storage_of(fake)) is not nodes[-1]:
        raise tape.refuse(spoken_name(func), _WHY, _ADVICE, where)


def _layout(tensor: torch.Tensor) -> ShapeAndStride:
    return tensor.shape, tensor.stride()


def _made_as(node: torch.fx.Node, fake: torch.Tensor) -> list[torch.fx.Node]:
    """Let what made `node`'s tensor make one that lies as `fake` does, if that was made empty and nothing uses it yet: the
    nodes that have to be described anew, none if it is not so."""
    chain = [node]
    while chain[-1].target is aten.detach.default:  # which some ways to make a tensor end in
        chain.append(chain[-1].args[0])  # type: ignore[arg-type]
    users = [user for link in chain for user in link.users if user not in chain]
    maker = chain[-1]
    is_one = all(link.meta.get("where") == maker.meta.get("where") for link in chain)  # else the program may hold both
    if maker.target not in _EMPTY or users or not is_one:
        return []
    maker.target, maker.args = aten.empty_strided.default, (list(fake.shape), list(fake.stride()))
    maker.kwargs = {"dtype": fake.dtype, "device": fake.device}
    return chain
