"""The private parts of torch that guards use, in one place, each with a test that it behaves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import torch

_guards: Any = torch._C._dynamo.guards
version_of_table: Callable[[dict[Any, Any]], int] = _guards.dict_version
"""A number that changes whenever a dictionary gets, loses or replaces an entry, and not when the very same is assigned."""


def tensor_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """One native call that tells whether tensors have these types, dtypes, devices, shapes, strides and grad flags.

    It also compares the thread's dispatch state (inference mode, autocast) with the one at this moment. Importing it
    takes no Dynamo: the class lives in torch's extension module.
    """
    guards: Any = _guards.TensorGuards
    with torch._C.DisableTorchFunctionSubclass():
        check: Callable[..., bool] = guards(
            *tensors,
            dynamic_dims_sizes=[list(tensor.size()) for tensor in tensors],
            dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
        ).check
    return check


Kinds = Sequence[tuple[Any, type]]
Codes = Sequence[tuple[FunctionType, CodeType]]


def native_check(tables: Sequence[dict[Any, Any]], kinds: Kinds, codes: Codes) -> Callable[[], bool] | None:
    """One native call that tells whether these dictionaries have the versions of this moment, these objects these classes,
    and these functions this code: some 10 to 20 ns each. None where nothing has imported Dynamo yet, whose import takes
    seconds and without which torch makes no such check, and for a torch that has not all of it.
    """
    enumeration = getattr(sys.modules.get("torch._dynamo.guards"), "GuardManagerType", None)
    if enumeration is None:
        return None
    objects = (*tables, *(value for value, _ in kinds), *(function for function, _ in codes))
    try:
        root = _root(enumeration.GUARD_MANAGER, tables, [id(cls) for _, cls in kinds], [id(code) for _, code in codes])
    except (TypeError, AttributeError):
        return None
    return partial(root.check, objects)


def _root(kind: Any, tables: Sequence[dict[Any, Any]], classes: list[int], codes: list[int]) -> Any:
    root = _guards.RootGuardManager()

    def at(index: int) -> Any:
        return root.tuple_getitem_manager(key=index, source=f"[{index}]", example_value=None, guard_manager_enum=kind)

    for index, table in enumerate(tables):
        _add(at(index).add_dict_version_guard, table)
    for index, cls in enumerate(classes, len(tables)):
        _add(at(index).add_type_match_guard, cls)
    for index, code in enumerate(codes, len(tables) + len(classes)):
        of_code = at(index).code_manager(source=f"[{index}].__code__", example_value=None, guard_manager_enum=kind)
        _add(of_code.add_id_match_guard, code)
    return root


def _add(add: Callable[..., None], value: Any) -> None:
    try:
        add(value, [""], None)
    except TypeError:  # an older torch, which takes no stack of the user's
        add(value, [""])
