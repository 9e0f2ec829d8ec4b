"""The private parts of torch that generated call functions use, in one place, each with a test that it behaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from treeplay.guards.torch_private import tensor_check as tensor_check

set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled
DisableAutocast: Any = torch._C._DisableAutocast
increment_version = torch.autograd.graph.increment_version


def storage_users(tensor: torch.Tensor) -> int:
    """How many tensors share the memory of `tensor`, itself included."""
    storage = tensor.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1  # less the wrapper just made
