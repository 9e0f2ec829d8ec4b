"""The private parts of torch that tracing uses, in one place, each covered by a test that it exists and behaves."""

from __future__ import annotations

import torch
from torch.nn.modules import module as _module


def is_mode_active() -> bool:
    """Whether somebody's dispatch or function mode, or a function transform, is active in this thread."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def is_dynamo_tracing() -> bool:
    """Whether `torch.compile` is tracing the caller."""
    return bool(torch.compiler.is_dynamo_compiling())


def version_of(tensor: torch.Tensor) -> int:
    """How often autograd was told that `tensor` changed; 0 where that is not kept (inference tensors)."""
    return 0 if tensor.is_inference() else int(tensor._version)


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Put a version counter back."""
    if not tensor.is_inference() and tensor._version != version:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


register_call_hook = _module.register_module_forward_pre_hook
