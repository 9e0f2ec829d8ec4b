"""Fused optimizers, whose learning rate torch's bindings turn into a plain number before any mode sees it.

While a program is traced, a call with a symbolic learning rate goes by an operator of ours with the same schema, except that
the rate is a `Scalar`, which may be symbolic; the tracer records torch's own operator for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from treeplay.trace.numbers.scalars import scalar_of

FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")

_library = torch.library.Library("treeplay", "FRAGMENT")  # kept: its operators go with it
_ours: dict[Callable[..., Any], Any] = {}
_torchs: dict[Any, Any] = {}


def _define(name: str) -> None:
    operator = getattr(torch.ops.aten, name).default
    _library.define(str(operator._schema).removeprefix("aten::").replace("float lr,", "Scalar lr,"))
    ours = getattr(torch.ops.treeplay, name).default
    _ours[getattr(torch, name)] = ours
    _torchs[ours] = operator


for _name in FUSED:
    _define(_name)


def with_symbolic_rate(function: Any, kwargs: dict[str, Any]) -> Any:
    """The operator to call for a torch function, so that a symbolic learning rate stays one: the function itself for most."""
    if scalar_of(kwargs.get("lr")) is None:
        return function
    return _ours.get(function, function)


def torchs_own(operator: Any) -> Any:
    """The operator to record for one that a program called."""
    return _torchs.get(operator, operator)
