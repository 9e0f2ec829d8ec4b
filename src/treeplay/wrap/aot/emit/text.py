"""Lines that the call of a compiled graph and its node have in common."""

from __future__ import annotations

import torch

from treeplay.codegen import Writer, list_of
from treeplay.torch_seam import flags
from treeplay.wrap.aot.calls import node, opening
from treeplay.wrap.aot.plan.facts import Tangent


def tokens(count: int) -> str:
    """What stands for tokens: they are there for the order in the graph only."""
    return list_of(["None"] * count)


def run_graph(text: Writer, is_cast: str | None = None) -> str:
    """What calls `run` with `args` and autocast off: the casts are in the graph. `is_cast`: what tells whether it is on, if it
    has been asked."""
    text.use("run_plainly", node.run_plainly)
    text.use("is_any_autocast_enabled", flags.is_any_autocast_enabled)
    return f"run_plainly(run, args) if {is_cast or 'is_any_autocast_enabled()'} else run(args)"


def count_values(text: Writer, count: int, values: str = "values", place: str = "forward") -> None:
    """Lines that compare how many values came with what the plan says; a lone one need not come in a list."""
    text.use("wrong_count", node.wrong_count)
    if count == 1:
        text.add(f"if type({values}) is not tuple and type({values}) is not list: {values} = ({values},)")
    text.add(f"if len({values}) != {count}: raise wrong_count({count}, {values}, {place!r})")


def write_plain_gradient(text: Writer, name: str, tangent: Tangent, place: str, *, layout: str) -> str:
    """The line that makes of the gradient in `name`, if one came, what the backward takes, which it mostly is.

    Compiled code and recordings read memory, and know nothing of the bits by which a tensor reads as that memory's conjugate or
    negative."""
    text.use("plain_gradient", opening.plain_gradient)
    text.use("Tensor", torch.Tensor)
    text.use("strided", torch.strided)
    bits = [f"{name}.is_neg()", *([f"{name}.is_conj()"] if tangent.dtype.is_complex else [])]
    lies = [f"{name}.layout is not strided", f"{name}.stride() != {tangent.layout.stride}"]
    is_odd = " or ".join([f"type({name}) is not Tensor", *lies, *bits])
    return f"if {name} is not None and ({is_odd}): {name} = plain_gradient({name}, {layout}, {place})"
