"""Fused optimizers, whose numbers torch's bindings turn into plain ones before any mode sees them.

While a program is traced, a call with a symbolic number goes by an operator of ours with the same schema, except that
each number is a `Scalar`, which may be symbolic; the tracer records torch's own operator for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.trace.numbers.scalars import guarded_value, scalar_of

_NAMES = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")

_library = torch.library.Library("treeplay", "FRAGMENT")  # kept: its operators go with it
_ours: dict[tuple[Callable[..., Any], bool], Any] = {}  # by torch's function, and whether the rate is a tensor
_torchs: dict[Any, Any] = {}


def _define(name: str, overload: str) -> None:
    operator = getattr(getattr(torch.ops.aten, name), overload)
    _library.define(str(operator._schema).removeprefix("aten::").replace("float ", "Scalar "))
    ours = getattr(getattr(torch.ops.treeplay, name), overload)
    _ours[getattr(torch, name), overload == "tensor_lr"] = ours
    _torchs[ours] = operator


for _name in _NAMES:
    for _overload in ("default", "tensor_lr"):
        if _overload in getattr(torch.ops.aten, _name).overloads():
            _define(_name, _overload)

FUSED = frozenset(_torchs.values())
"""Torch's operators for whole steps."""
RATE_AS_A_TENSOR = frozenset(
    op for op in FUSED if op._overloadname == "default" and "tensor_lr" in op.overloadpacket.overloads()
)
"""Those that take the rate as a number, and have a twin that takes it as a tensor."""


def with_symbolic_numbers(function: Any, kwargs: dict[str, Any]) -> Any:
    """The operator to call for a torch function, so that symbolic numbers stay such: the function itself for most."""
    if all(scalar_of(value) is None for value in kwargs.values()):
        return function
    return _ours.get((function, isinstance(kwargs.get("lr"), torch.Tensor)), function)


def torchs_own(operator: Any) -> Any:
    """The operator to record for one that a program called."""
    return _torchs.get(operator, operator)


def with_numbers_decided(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operator for a whole step, those of others as they are. Whether there is a weight decay is a
    condition: torch's kernels branch on it. On a GPU they take no number but the rate as a tensor: the others are plain."""
    if operator not in FUSED:
        return kwargs
    if any(param.device.type != "cpu" for param in args[0]):
        stays = "lr" if operator in RATE_AS_A_TENSOR else None
        return {name: value if name == stays else guarded_value(value) for name, value in kwargs.items()}
    decay = kwargs["weight_decay"]
    return {**kwargs, "weight_decay": decay if scalar_of(decay) is None or decay else 0.0}
