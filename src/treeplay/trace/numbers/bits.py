"""How many bits an integer may have that a run computes of its inputs, which have 64.

An operator takes no integer of more than 64 bits. Python makes no float of one that is larger than the largest float: it raises
where such an integer is divided, or stands beside a float. Only for an integer that may get as large does anyone ask.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch.fx

from treeplay.values.arithmetic import FUNCTIONS
from treeplay.values.signature import is_integer_of_64_bits

_OF_A_FLOAT = 1023  # Python makes a float of each integer of so many, and no float has more before the point


def width_of_integer(node: Any) -> float:
    """How many bits an integer may have that is this node of a graph, or is known; a number of another kind has none."""
    if not isinstance(node, torch.fx.Node):
        return node.bit_length() if isinstance(node, int) else 0
    bits: float = node.meta.get("bits", 64) if node.meta.get("is_integer") else 0
    return bits


def note_bits(node: Any, fn: Any, of: Sequence[Any]) -> None:
    """Note how many bits an integer may have that `fn` computes `of` others."""
    if not isinstance(node, torch.fx.Node):
        return
    bits = [*map(width_of_integer, of)]
    if fn in (operator.add, operator.sub):
        most: float = max(bits) + 1
    elif fn is operator.mul:
        most = sum(bits)
    elif fn is operator.pow:
        most = math.inf if isinstance(of[1], torch.fx.Node) else bits[0] * of[1]
    else:
        most = _OF_A_FLOAT if fn in FUNCTIONS else max(bits)
    node.meta["bits"] = most


def may_exceed_floats(node: Any) -> bool:
    """Whether an integer may be one of which Python makes no float."""
    return width_of_integer(node) > _OF_A_FLOAT


def may_leave(node: Any) -> bool:
    """Whether an integer that is computed, of some that have 64 bits, may have more."""
    if not isinstance(node, torch.fx.Node):
        return not is_integer_of_64_bits(node)
    if node.op == "placeholder":
        return False
    rest = node.args[1] if node.target is operator.mod else None
    return rest is None or may_leave(rest)
