"""Numbers that vary, where torch makes tensors of their values before any operator sees them. A trace takes its steps singly.

torch.tensor([s0, 2.0])   ─▶  torch.tensor of their values, noted as a function of the numbers
torch.where(mask, x, s0)  ─▶  where(mask, x.to(dtype), scalar_tensor(s0, dtype)) in the dtype of `x` and a number together
x[index] = s0             ─▶  x[index] = torch.tensor(s0, dtype=x.dtype)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from treeplay.trace.numbers.constants import Constants
from treeplay.trace.numbers.scalars import scalar_of, unguarded_value
from treeplay.trace.run.tape import MOST_NUMBERS

_MAKES = (torch.tensor, torch.as_tensor)
_NAMES = ("condition", "input", "other")
# The method is one of the tensor that is taken where the condition holds.
_OF_A_TENSOR = ("input", "condition", "other")


def _method(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return dict(zip(_OF_A_TENSOR, args, strict=False)) | kwargs


def _function(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {
        ("input" if name == "self" else name): value
        for name, value in (dict(zip(_NAMES, args, strict=False)) | kwargs).items()
    }


_CHOOSE: dict[Any, Callable[..., dict[str, Any]]] = {torch.where: _function, torch.Tensor.where: _method}


def _together(one: Any, other: Any) -> torch.dtype:
    """The dtype of two sides."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return torch.result_type(one, other)
    default = torch.get_default_dtype()  # torch would make tensors of two numbers
    kinds = {type(one), type(other)}
    return default.to_complex() if complex in kinds else default if float in kinds else torch.int64


def tensor_of_numbers(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], constants: Constants
) -> torch.Tensor | None:
    """The result of a call of `torch.tensor` or `torch.where` in which a number is symbolic; None for any other call."""
    if func in _MAKES:
        return _made(func, args, kwargs, constants)
    if func in _CHOOSE and any(scalar_of(value) is not None for value in (*args, *kwargs.values())):
        return _chosen(**_CHOOSE[func](*args, **kwargs))
    return None


def _made(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], constants: Constants) -> torch.Tensor | None:
    data = args[0] if args else kwargs.get("data")
    numbers = data if isinstance(data, (list, tuple)) else (data,)
    if len(numbers) > MOST_NUMBERS or all(scalar_of(number) is None for number in numbers):
        return None
    if not all(type(number) in (int, float) or scalar_of(number) is not None for number in numbers):
        return None
    others = {name: value for name, value in kwargs.items() if name != "data"}
    known = [unguarded_value(number) for number in numbers]
    made: torch.Tensor = constants.make_of(func, numbers, known if numbers is data else known[0], others)
    return made


def _chosen(**given: Any) -> torch.Tensor | None:
    if given.keys() != {*_NAMES} or not isinstance(given["condition"], torch.Tensor):
        return None
    condition, sides = given["condition"], [given["input"], given["other"]]
    dtype = _together(*map(unguarded_value, sides))
    options = {"dtype": dtype, "layout": condition.layout, "device": condition.device}
    make = torch.ops.aten.scalar_tensor.default
    # In torch's order: tensors of numbers first, that of the last number before the other.
    made = [side if isinstance(side, torch.Tensor) else make(side, **options) for side in reversed(sides)]
    other, first = (side.to(dtype) for side in made)
    return torch.where(condition, first, other)


def takes_any(x: torch.Tensor, number: Any) -> bool:
    """Whether each number of this kind can be stored in `x`."""
    return x.dtype.is_floating_point or (x.dtype == torch.int64 and type(number) is int)


def to_be_stored(func: Any, args: tuple[Any, ...], constants: Constants) -> tuple[Any, ...] | None:
    """The arguments of `x[index] = number` with a tensor for a symbolic number; None for any other call, and where eager raises
    for some numbers, since `x` is too narrow."""
    if func is not torch.Tensor.__setitem__ or scalar_of(args[2]) is None:
        return None
    x, index, number = args
    value = unguarded_value(number)
    if not takes_any(x, value):
        return None
    # For a tensor on a GPU, torch makes that of the number on the host, and fills where it would have copied.
    options = {"dtype": x.dtype, "device": "cpu" if x.is_cuda else x.device}
    return x, index, constants.make_of(torch.tensor, (number,), value, options)
