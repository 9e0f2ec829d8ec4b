"""The private parts of torch that guards use, in one place, each with a test that it behaves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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
    check: Callable[..., bool] = guards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.size()) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
    return check


def tables_check(tables: tuple[dict[Any, Any], ...]) -> Callable[[tuple[dict[Any, Any], ...]], bool]:
    """One call that tells whether these dictionaries have the versions of this moment.

    Natively some 10 ns each; 45 ns where nothing has imported Dynamo yet, which its guards ask for and which takes seconds.
    """
    kinds = getattr(sys.modules.get("torch._dynamo.guards"), "GuardManagerType", None)
    if kinds is None:
        versions = [version_of_table(table) for table in tables]
        return lambda tables: [*map(version_of_table, tables)] == versions
    root = _guards.RootGuardManager()
    for at, table in enumerate(tables):
        manager = root.tuple_getitem_manager(
            key=at, source=f"[{at}]", example_value=None, guard_manager_enum=kinds.GUARD_MANAGER
        )
        _add_version_guard(manager, table)
    check: Callable[[tuple[dict[Any, Any], ...]], bool] = root.check
    return check


def _add_version_guard(manager: Any, table: dict[Any, Any]) -> None:
    try:
        manager.add_dict_version_guard(table, [""], None)
    except TypeError:  # an older torch, which takes no stack of the user's
        manager.add_dict_version_guard(table, [""])
