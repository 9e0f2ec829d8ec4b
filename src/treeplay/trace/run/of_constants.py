"""Reads of what a program computes of constants alone, `torch.arange(2, n).tolist()`: they give the same in each call.

The operators that lead to such a tensor are run once more, with data. Whatever depends on an input, is drawn, is written in
place or has no defined content is no constant, and a read of it stays refused.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam.modes import DisableTorchFunction, without_dispatch_modes
from treeplay.torch_seam.operators import OpOverload
from treeplay.torch_seam.schemas import is_random
from treeplay.trace.run.tape import TraceTape

_MOST_STEPS = 64
_aten = torch.ops.aten


def answer_of_constants(tape: TraceTape, func: Any, args: Any) -> Any:
    """What an operator that reads on the host gives for tensors that are made of constants; None for others."""
    constants = {seen.value.node: seen.tensor for seen in tape.inputs if seen.is_constant}
    known: dict[torch.fx.Node, Any] = {}

    def value(node: torch.fx.Node) -> Any:
        if node not in known:
            if len(known) >= _MOST_STEPS or node.meta.get("storage") in tape.mutated:
                raise LookupError
            known[node] = constants[node] if node.op == "placeholder" else _run(node)
        return known[node]

    def _run(node: torch.fx.Node) -> Any:
        if node.target is not operator.getitem and not _is_of_its_arguments(node.target):
            raise LookupError
        given = torch.fx.map_arg((node.args, node.kwargs), value)
        return node.target(*given[0], **given[1])  # type: ignore[operator]

    try:
        with without_dispatch_modes(), DisableTorchFunction(), torch.no_grad():
            tensors = [value(tape.values[id(arg)].node) if isinstance(arg, torch.Tensor) else arg for arg in args]
            return func(*tensors)
    except LookupError:
        return None


def _is_of_its_arguments(func: Any) -> bool:
    """Whether what an operator gives follows from its arguments, which it does not change."""
    is_plain = isinstance(func, OpOverload) and func.namespace == "aten" and not func._schema.is_mutable
    return is_plain and not is_random(func) and "empty" not in func.__name__
