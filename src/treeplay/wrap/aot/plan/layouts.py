"""How traced values lie in memory, and arguments whose shape changes in place.

A functional trace makes a new tensor for each write, which lies as its operator likes. Where a written argument, or a view
of it, lies afterwards is told by the view steps that lead to it, taken from the argument as the call gets it:

    x = whole[2:]      offset 4, strides (2, 1)         x as the call gets it
    x.t_()             offset 4, strides (1, 2)         steps: t_
    x.mul_(2)          offset 0, strides (1, 2)         the new tensor
    afterwards         offset 4, strides (1, 2)         steps taken from x
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from treeplay.torch_seam import fakes
from treeplay.torch_seam.aot import Traced
from treeplay.values.layout import Layout
from treeplay.wrap.aot.plan.bases import layout_of
from treeplay.wrap.aot.tracing.findings import TraceFindings, refusal_to_wrap
from treeplay.wrap.aot.tracing.probe import apart


def fake_value(node: Any) -> Any:
    """What a node of a traced graph gives, without data. Numbers that are inputs have none; a number is itself."""
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else node


def known_layout(tensor: torch.Tensor) -> Layout:
    """How a tensor lies whose sizes are known, or a refusal."""
    numbers = (*tensor.size(), *tensor.stride(), tensor.storage_offset())
    if not all(type(number) is int for number in numbers):
        raise refusal_to_wrap("wrap", "a view or a gradient whose sizes are not known at the trace", None)
    return layout_of(tensor)


def layout_from(sample: torch.Tensor, steps: list[Any]) -> Layout:
    """How the view of an argument lies that these steps lead to."""
    known_layout(sample)
    (fake,) = apart([sample])
    with torch.no_grad(), fakes.mode_of_fake(fake):
        return known_layout(fakes.apply_views(fake, steps))


def new_layouts(facts: Any, seen: TraceFindings, samples: Sequence[Any], names: Sequence[str]) -> dict[int, Layout]:
    """The layouts of inputs which the program left in another shape than it found, counted from where they begin, or a refusal.

    Torch tells by its own tensors' sizes and strides, which a write moves too, or moves back."""
    found = {}
    for k, now in seen.reshaped.items():
        info, sample = facts.input_info[k], samples[k]
        if now.steps is None or not (info.mutates_data or info.mutates_metadata):
            continue
        if info.mutates_data and any(type(step).__name__.startswith(("as_strided", "resize")) for step in now.steps):
            # The graph returns what the new shape shows: writes to the rest would be lost.
            told = f"`{names[k]}` is written, and its shape changes in place to show another part of its memory"
            raise refusal_to_wrap("write", told, seen.line())
        layout = layout_from(sample, now.steps)
        if layout.shape != now.size:
            raise refusal_to_wrap("resize_", f"`{names[k]}` grows beyond its storage", seen.line())
        before = known_layout(sample)
        if layout != before:
            found[k] = replace(layout, offset=layout.offset - before.offset)
    return found


def counts_from_the_start(steps: list[Any] | None) -> bool:
    """Whether view steps may lead to a place in a storage, wherever in it the tensor begins that they are taken from."""
    return any(type(step).__name__.startswith("as_strided") for step in steps or ())


def reshaped_and_back(traced: Traced, seen: TraceFindings) -> frozenset[int]:
    """Inputs that need a gradient and whose shape was changed in place and changed back.

    Torch differentiates with respect to what they are in the end, and loses what was computed before."""
    infos = traced.facts.input_info
    return frozenset(
        k
        for k in seen.reshaped
        if traced.is_joint and infos[k].requires_grad and not infos[k].mutates_data and not infos[k].mutates_metadata
    )
