"""Flags of a thread and of the process: gradients, autocast, deterministic algorithms, precisions, kernels of attention."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.autograd.forward_ad
import torch.backends.mha
from torch.utils._config_module import ConfigModule as ConfigModule

is_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled
"""Whether a profiler follows this thread."""

profiler: Any = torch.autograd.profiler
"""A module whose `_is_profiler_enabled` says whether there is a profiler at all: to read it costs a fourth of that question."""
# Read on import, so that a torch that lacks it is told by `require`, and not by a call.
_ = profiler._is_profiler_enabled


def is_setting(value: Any, name: str) -> bool:
    """Whether `name` is one of the settings that a module of torch's keeps: it has them beside its attributes."""
    return issubclass(type(value), ConfigModule) and name in object.__getattribute__(value, "_config")


# What Dynamo's graphs call to change modes.
ENTER_INFERENCE = torch.autograd.grad_mode._enter_inference_mode

EXIT_INFERENCE = torch.autograd.grad_mode._exit_inference_mode

set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled

without_autocast: Callable[[], contextlib.AbstractContextManager[Any]] = torch._C._DisableAutocast
"""A context in which autocast is off on every device: where its casts are in the graph."""

# Modes that have no public function, or one that takes several times as long.
is_any_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled

is_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms

fills_memory: Callable[[], bool] = torch._C._get_deterministic_fill_uninitialized_memory

FORWARD_LEVEL = (torch.autograd.forward_ad, "_current_level")  # -1 outside of `dual_level`

FAST_PATH = (torch.backends.mha, "_is_fastpath_enabled")

AutocastDtypes = tuple[tuple[str, torch.dtype], ...]

# Those that the function above knows.
AUTOCAST_KINDS = ("cpu", "cuda", "xpu", "mtia", "hpu", "ipu", "xla", "privateuseone")

matmul_precision: Callable[[], str] = torch._C._get_float32_matmul_precision

allows_tf32: Callable[[], bool] = torch._C._get_cublas_allow_tf32  # False for the highest precision; takes half as long

CPU_MODES: dict[str, Callable[[], Any]] = {"oneDNN": torch._C._get_mkldnn_enabled}

# The kernel that is tried first comes first.
attention_order: Callable[[], list[int]] = torch._C._get_sdp_priority_order

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

LIBRARY_MODES = CPU_MODES | ATTENTION_MODES | GPU_ATTENTION_MODES | CUDNN_MODES | CUBLAS_MODES
"""All of these: how the libraries below torch's operators work."""


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
    found = (torch._C._get_fp32_precision_getter(*product) for product in products)
    # "none", as long as none was set, is full precision too.
    return tuple("ieee" if precision == "none" else precision for precision in found)


NEWER = "by its newer names"


def mode_value(read: Callable[[], Any]) -> Any:
    """What `read` tells of a mode, if it was not set by one of torch's newer names, which the older ones do not know."""
    try:
        return read()
    except RuntimeError:
        return NEWER, precisions()


set_view_replay = torch._C._set_view_replay_enabled

is_view_replay_enabled = torch._C._is_view_replay_enabled


def autocast_dtypes() -> AutocastDtypes:
    """Device types under autocast, and what it casts to there."""
    if not is_any_autocast_enabled():
        return ()
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in AUTOCAST_KINDS if torch.is_autocast_enabled(kind))


@contextlib.contextmanager
def under_autocast(dtypes: AutocastDtypes) -> Iterator[None]:
    """A block under autocast as `autocast_dtypes` told of it, and no other."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_autocast())
        for kind, dtype in dtypes:
            stack.enter_context(torch.autocast(kind, dtype, cache_enabled=torch.is_autocast_cache_enabled()))
        yield


def autocast_state() -> tuple[Any, ...]:
    """What autocast does in this thread: per kind of device whether it is on and to which dtype it casts; its cache."""
    kinds = ((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in AUTOCAST_KINDS)
    return (*kinds, torch.is_autocast_cache_enabled(), _autocast_nesting())


def _autocast_nesting() -> int:
    # Torch tells how deep contexts are nested only to whoever changes that.
    nesting = int(torch.autocast_increment_nesting()) - 1
    torch.autocast_decrement_nesting()
    return nesting


def set_autocast_state(state: tuple[Any, ...]) -> None:
    """Put autocast back."""
    *kinds, is_cached, nesting = state
    for kind, (is_enabled, dtype) in zip(AUTOCAST_KINDS, kinds, strict=True):
        torch.set_autocast_enabled(kind, is_enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(is_cached)
    for _ in range(_autocast_nesting(), nesting, -1):  # contexts that were entered and not left
        torch.autocast_decrement_nesting()
