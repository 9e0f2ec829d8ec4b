"""The private parts of torch that generated call functions use, in one place, each with a test that it behaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled
DisableAutocast: Any = torch._C._DisableAutocast
increment_version = torch.autograd.graph.increment_version


def tensor_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """One native call that tells whether tensors have these types, dtypes, devices, shapes, strides and grad flags.

    It also compares the thread's dispatch state (inference mode, autocast) with the one at this moment. Importing it
    takes no Dynamo: the class lives in torch's extension module.
    """
    guards: Any = torch._C._dynamo.guards.TensorGuards
    check: Callable[..., bool] = guards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.size()) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
    return check


def storage_users(tensor: torch.Tensor) -> int:
    """How many tensors share the memory of `tensor`, itself included."""
    storage = tensor.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1  # less the wrapper just made
