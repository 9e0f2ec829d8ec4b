"""The private parts of torch that generated call functions use, in one place, each with a test that it behaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad
import torch.backends.mha
from torch.utils._device import DeviceContext

from treeplay.guards.torch_private import tensor_check as tensor_check

set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled
DisableAutocast: Any = torch._C._DisableAutocast
increment_version = torch.autograd.graph.increment_version
preserving_version: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]

# Modes that have no public function, or one that takes several times as long.
is_any_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled
is_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms
fills_memory: Callable[[], bool] = torch._C._get_deterministic_fill_uninitialized_memory
FORWARD_LEVEL = (torch.autograd.forward_ad, "_current_level")  # -1 outside of `dual_level`
FAST_PATH = (torch.backends.mha, "_is_fastpath_enabled")
AUTOCAST_KINDS = (
    "cpu",
    "cuda",
    "xpu",
    "mtia",
    "hpu",
    "ipu",
    "xla",
    "privateuseone",
)  # those that the function above knows
matmul_precision: Callable[[], str] = torch._C._get_float32_matmul_precision
allows_tf32: Callable[[], bool] = torch._C._get_cublas_allow_tf32  # False for the highest precision; takes half as long
CPU_MODES: dict[str, Callable[[], Any]] = {"oneDNN": torch._C._get_mkldnn_enabled}

attention_order: Callable[[], list[int]] = (
    torch._C._get_sdp_priority_order
)  # the kernel that is tried first comes first
ATTENTION_MODES: dict[str, Callable[[], Any]] = {
    "flash attention": torch._C._get_flash_sdp_enabled,
    "attention of plain operators": torch._C._get_math_sdp_enabled,
    "16-bit sums in attention": torch._C._get_math_sdp_allow_fp16_bf16_reduction,
}
GPU_ATTENTION_MODES: dict[str, Callable[[], Any]] = {
    "memory-efficient attention": torch._C._get_mem_efficient_sdp_enabled,
    "cuDNN attention": torch._C._get_cudnn_sdp_enabled,
    "order of attention kernels": attention_order,
}
CUDNN_MODES: dict[str, Callable[[], Any]] = {
    "cuDNN": torch._C._get_cudnn_enabled,
    "cuDNN benchmark": torch._C._get_cudnn_benchmark,
    "cuDNN deterministic": torch._C._get_cudnn_deterministic,
    "TF32 in cuDNN": torch._C._get_cudnn_allow_tf32,
}
CUBLAS_MODES: dict[str, Callable[[], Any]] = {
    "float16 sums in cuBLAS": torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
    "bfloat16 sums in cuBLAS": torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
    "float16 accumulation in cuBLAS": torch._C._get_cublas_allow_fp16_accumulation,
}


def global_state() -> Callable[[], bool]:
    """One native call that tells whether the modes that it knows of are as at this moment: among others those of
    `GLOBAL_STATE`, and autocast."""
    check: Callable[[], bool] = torch._C._dynamo.guards.GlobalStateGuard().check
    return check


GLOBAL_STATE: tuple[Callable[[], Any], ...] = (
    torch.is_grad_enabled,
    torch.get_default_dtype,
    torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
    torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
)


def forward_level() -> int:
    """The innermost `dual_level` that is open in this process, or -1."""
    return int(getattr(*FORWARD_LEVEL))


def fast_path() -> bool:
    """Whether attention modules may take their fast path."""
    return bool(getattr(*FAST_PATH))


def precisions() -> tuple[str, ...]:
    """All precisions of float32 arithmetic. Once one was set by its own name, the older names of modes may give an error."""
    products = [(library, op) for library in ("cuda", "mkldnn") for op in ("matmul", "conv", "rnn")]
    return tuple(torch._C._get_fp32_precision_getter(*product) for product in products)


_CPU = torch.device("cpu")


def default_device() -> torch.device | None:
    """Where tensors are made for which a program names no device; None for the CPU."""
    for at in range(torch._C._len_torch_function_stack() - 1, -1, -1):
        mode = torch._C._get_function_stack_at(at)
        if isinstance(mode, DeviceContext):
            device: torch.device = mode.device
            return None if device == _CPU else device
    return None


def is_alone(tensor: torch.Tensor) -> bool:
    """Whether no other tensor shares the memory of `tensor`. Of memory that is not torch's own (a NumPy array's) that
    cannot be known: it may be in several storages."""
    storage = tensor.untyped_storage()
    users = int(torch._C._storage_Use_Count(storage._cdata)) - 1  # less the wrapper just made
    return users == 1 and storage.resizable()


def owns_memory(tensor: torch.Tensor) -> bool:
    """Whether torch allocated the memory of `tensor`: then it is in no other storage."""
    return tensor.untyped_storage().resizable()
