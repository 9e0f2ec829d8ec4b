"""The private parts of torch that call functions use exist and behave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from treeplay.torch_seam import dynamo, flags, modes, tensors

BASE = torch.ones(2, 3)
OTHERS = {
    "shape": torch.ones(3, 3),
    "stride": torch.ones(3, 2).t(),
    "dtype": torch.ones(2, 3, dtype=torch.float64),
    "requires_grad": torch.ones(2, 3, requires_grad=True),
    "conjugated": torch.ones(2, 3, dtype=torch.complex64).conj(),
    "a parameter": nn.Parameter(torch.ones(2, 3), requires_grad=False),
}


@pytest.mark.parametrize("what", OTHERS)
def test_the_native_check_tells_tensors_apart(what: str) -> None:
    check = dynamo.tensor_check([BASE])
    assert check(torch.zeros(2, 3)) and not check(OTHERS[what])


def test_the_native_check_refuses_other_kinds_and_one_tensor_twice() -> None:
    check = dynamo.tensor_check([BASE, torch.ones(2, 3)])
    assert check(torch.ones(2, 3), torch.ones(2, 3))
    assert not check(BASE, BASE) and not check(BASE, None)


def test_the_native_check_compares_the_dispatch_state() -> None:
    check = dynamo.tensor_check([BASE])
    with torch.inference_mode():
        assert not check(BASE)
    with torch.autocast("cpu", torch.bfloat16):
        assert not check(BASE)
    assert check(BASE)


def test_memory_that_others_share_or_that_is_not_torchs_is_told() -> None:
    tensor = torch.ones(4)
    assert tensors.is_alone(tensor)
    view = tensor[1:]
    assert not tensors.is_alone(tensor) and not tensors.is_alone(view) and tensors.owns_memory(view)
    del view
    assert tensors.is_alone(tensor)
    foreign = torch.from_numpy(np.ones(4))
    assert not tensors.is_alone(foreign) and not tensors.owns_memory(foreign)


def test_modes_can_be_set_and_versions_moved() -> None:
    flags.set_grad_enabled(False)
    assert not torch.is_grad_enabled()
    flags.set_grad_enabled(True)
    with torch.autocast("cpu", torch.bfloat16), flags.without_autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
    tensor = torch.ones(1)
    torch.autograd.graph.increment_version((tensor,))
    assert tensor._version == 1


SETTERS = {
    "flash attention": (torch.backends.cuda.enable_flash_sdp, False),
    "attention of plain operators": (torch.backends.cuda.enable_math_sdp, False),
    "16-bit sums in attention": (torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp, True),
    "oneDNN": (torch._C._set_mkldnn_enabled, False),
    "memory-efficient attention": (torch.backends.cuda.enable_mem_efficient_sdp, False),
    "cuDNN attention": (torch.backends.cuda.enable_cudnn_sdp, False),
    "order of attention kernels": (torch._C._set_sdp_priority_order, [0, 1, 2, 3, 4]),
    "cuDNN": (torch._C._set_cudnn_enabled, False),
    "cuDNN benchmark": (torch._C._set_cudnn_benchmark, True),
    "cuDNN deterministic": (torch._C._set_cudnn_deterministic, True),
    "TF32 in cuDNN": (torch._C._set_cudnn_allow_tf32, False),
    "float16 sums in cuBLAS": (torch._C._set_cublas_allow_fp16_reduced_precision_reduction, False),
    "bfloat16 sums in cuBLAS": (torch._C._set_cublas_allow_bf16_reduced_precision_reduction, False),
    "float16 accumulation in cuBLAS": (torch._C._set_cublas_allow_fp16_accumulation, True),
}


READERS = {
    **flags.CPU_MODES,
    **flags.ATTENTION_MODES,
    **flags.GPU_ATTENTION_MODES,
    **flags.CUDNN_MODES,
    **flags.CUBLAS_MODES,
}


@pytest.mark.parametrize("what", READERS)
def test_each_mode_of_the_process_can_be_read(what: str) -> None:
    read = READERS[what]
    write, value = SETTERS[what]
    before = read()
    try:
        write(value)
        assert read() != before
    finally:
        if isinstance(before, tuple) and before and isinstance(before[0], bool):
            write(*before)
        else:
            write(before)
    assert read() == before


def test_a_setting_is_told_from_what_a_module_of_settings_has_besides() -> None:
    from torch._dynamo import config

    assert flags.is_setting(config, "verbose") and "verbose" not in vars(config)
    for other in ("no_such_setting", "_config", "patch", "__name__"):
        assert not flags.is_setting(config, other)
    assert not flags.is_setting(torch, "verbose")


@pytest.mark.parametrize("what", [name for name, read in READERS.items() if read in flags.GLOBAL_STATE])
def test_the_global_state_tells_of_a_mode(what: str) -> None:
    write, value = SETTERS[what]
    before = READERS[what]()
    is_as_before = flags.global_state()
    assert is_as_before()
    write(value)
    try:
        assert not is_as_before()
    finally:
        write(*before) if isinstance(before, tuple) else write(before)
    assert is_as_before()


@pytest.mark.parametrize(
    ("change", "back"),
    [
        (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)),
        (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
        (lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)),
        (lambda: torch.set_float32_matmul_precision("high"), lambda: torch.set_float32_matmul_precision("highest")),
    ],
    ids=["grad mode", "default dtype", "deterministic algorithms", "precision"],
)
def test_the_global_state_tells_of_a_mode_that_torch_shows(
    change: Callable[[], None], back: Callable[[], None]
) -> None:
    is_as_before = flags.global_state()
    change()
    try:
        assert not is_as_before()
    finally:
        back()
    # torch 2.15 counts a precision that was set back as another one: whoever asks then asks for each mode by itself.
    assert is_as_before() or "cuda_matmul_precision" in str(global_state_of(is_as_before))
    assert flags.global_state()()


def global_state_of(check: Callable[[], bool]) -> str:
    return check.__self__.__getstate__()  # type: ignore[attr-defined, no-any-return]


def test_precisions_are_told_apart_once_the_older_names_are_of_no_use() -> None:
    before = flags.precisions()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError, match="mix"):
            flags.matmul_precision()
        with pytest.raises(RuntimeError, match="mix"):
            flags.allows_tf32()
        assert flags.precisions() != before
    finally:
        torch.backends.cuda.matmul.fp32_precision = before[0]
    assert flags.precisions() == before


def test_only_the_highest_precision_does_without_tf32() -> None:
    for precision in ("medium", "high", "highest"):
        torch.set_float32_matmul_precision(precision)
        assert flags.matmul_precision() == precision
        assert flags.allows_tf32() is (precision != "highest")


def test_levels_of_forward_mode_and_the_fast_path_are_read_where_torch_keeps_them() -> None:
    assert flags.forward_level() == -1
    with torch.autograd.forward_ad.dual_level():
        assert flags.forward_level() == 0
    assert flags.forward_level() == -1
    torch.backends.mha.set_fastpath_enabled(False)
    assert not flags.fast_path()
    torch.backends.mha.set_fastpath_enabled(True)
    assert flags.fast_path()


def test_the_deterministic_modes_are_those_of_torchs_functions() -> None:
    for on in (True, False):
        torch.use_deterministic_algorithms(on)
        assert flags.is_deterministic() is torch.are_deterministic_algorithms_enabled() is on
        assert flags.fills_memory() is torch.utils.deterministic.fill_uninitialized_memory


def test_autocast_is_asked_for_of_each_kind_of_device() -> None:
    assert not flags.is_any_autocast_enabled()
    for kind in flags.AUTOCAST_KINDS:
        torch.set_autocast_enabled(kind, True)
        is_known = flags.is_any_autocast_enabled()
        assert torch.get_autocast_dtype(kind) and (is_known or kind == "mtia")  # which some releases leave out
        torch.set_autocast_enabled(kind, False)


def test_the_default_device_is_the_innermost_that_was_set() -> None:
    assert modes.default_device() is None
    with torch.device("meta"):
        assert modes.default_device() == torch.device("meta")
        with torch.device("cpu"):
            assert modes.default_device() is None
    torch.set_default_device("meta")
    try:
        assert modes.default_device() == torch.device("meta")
    finally:
        torch.set_default_device(None)
    assert modes.default_device() is None


def test_full_precision_is_one_whether_it_was_set_or_not() -> None:
    before = torch.get_float32_matmul_precision()
    found = []
    try:
        for precision in ("highest", "medium", "highest"):
            torch.set_float32_matmul_precision(precision)
            found.append(flags.precisions())
    finally:
        torch.set_float32_matmul_precision(before)
    assert found[0] == found[2] != found[1] and "none" not in found[0]
