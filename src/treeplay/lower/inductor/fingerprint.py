"""What tells one graph to compile from another: a text of all that its compiled code depends on, and of nothing else.

Two processes write the same text for the same program. Names of values, addresses and lines of source are left out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam.operators import OpOverload
from treeplay.values.arithmetic import FORMS
from treeplay.values.spec import TensorSpec

_TORCHS = frozenset(("aten", "prims"))
_AS_THEY_ARE_WRITTEN = (type(None), bool, int, float, complex, str, bytes)
_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_FACTS = ("spec", "results", "offset", "is_integer")
"""What lowering reads of a node besides what it computes. Which of them share memory is said apart."""


class Indistinct(Exception):
    """Something whose text would not tell it from others; the message is what."""


def fingerprint_text(graph: torch.fx.Graph) -> str:
    """The text of a traced graph; raises `Indistinct`."""
    places = {node: at for at, node in enumerate(graph.nodes)}
    memory: dict[Any, int] = {}

    def line(node: torch.fx.Node) -> str:
        facts = {name: node.meta[name] for name in _FACTS if name in node.meta}
        if "storage" in node.meta:
            facts["memory"] = memory.setdefault(node.meta["storage"], len(memory))
        return " ".join(
            (node.op, _target(node), *(value_text(part, places) for part in (node.args, node.kwargs, facts)))
        )

    return "\n".join(map(line, graph.nodes))


def value_text(value: Any, places: Mapping[torch.fx.Node, int] | None = None) -> str:
    """The text of a value; of a node, its place among `places`."""
    kind = type(value)
    if kind in _AS_THEY_ARE_WRITTEN:
        return repr(value)
    if kind in _OF_TORCH:
        return str(value)
    if isinstance(value, torch.fx.Node) and places is not None:
        return f"%{places[value]}"
    if kind is TensorSpec:
        parts = (value.shape, value.stride, value.dtype, value.device, value.requires_grad)
        return f"tensor{value_text(parts, places)}"
    if isinstance(value, tuple):
        return f"({','.join(value_text(item, places) for item in value)})"
    if isinstance(value, list):
        return f"[{','.join(value_text(item, places) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{value_text(key)}:{value_text(item, places)}' for key, item in value.items())}}}"
    if isinstance(value, (set, frozenset)):
        return f"set({','.join(sorted(value_text(item) for item in value))})"
    if kind is slice:
        return f"slice{value_text((value.start, value.stop, value.step), places)}"
    raise Indistinct(f"a {kind.__name__} among its constants")


def _target(node: torch.fx.Node) -> str:
    target: Any = node.target
    if node.op in ("placeholder", "output"):
        return ""  # how an argument is called
    if node.op != "call_function":
        raise Indistinct(f"a node of the kind {node.op}")
    if isinstance(target, OpOverload):
        if target.namespace not in _TORCHS:  # whose implementation may be another one tomorrow
            raise Indistinct(f"the operator {target}")
        return str(target)
    if target in FORMS or target is operator.getitem or getattr(math, getattr(target, "__name__", ""), None) is target:
        return f"{target.__module__}.{target.__name__}"
    raise Indistinct(f"the function {getattr(target, '__name__', target)}")
