"""Modes of the process and of the thread that change between calls: part of the key, watched, or a reason to run eagerly."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import treeplay
from support import jit
from support.follows import Story, follows, nothing, put_back

Tensor = torch.Tensor


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]] = {
    "deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        True,
    ),
    "only warn": (
        torch.is_deterministic_algorithms_warn_only_enabled,
        lambda value: torch.use_deterministic_algorithms(False, warn_only=value),
        True,
    ),
    "flash attention": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, False),
    "math attention": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp, False),
    "efficient attention": (
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.enable_mem_efficient_sdp,
        False,
    ),
    "attention of cuDNN": (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp, False),
    "fast path": (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, False),
    "dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "precision of products": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        "medium",
    ),
    "filling": (
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
        lambda value: setattr(torch.utils.deterministic, "fill_uninitialized_memory", value),
        False,
    ),
    "cuDNN": (
        lambda: torch.backends.cudnn.enabled,
        lambda value: setattr(torch.backends.cudnn, "enabled", value),
        False,
    ),
    "tuning": (
        lambda: torch.backends.cudnn.benchmark,
        lambda value: setattr(torch.backends.cudnn, "benchmark", value),
        True,
    ),
    "oneDNN": (lambda: torch.backends.mkldnn.enabled, lambda value: torch.backends.mkldnn.set_flags(value), False),
    "threads": (torch.get_num_threads, torch.set_num_threads, 2),
    "decimals": (lambda: decimal.getcontext().prec, lambda value: setattr(decimal.getcontext(), "prec", value), 3),
    "errors of NumPy": (lambda: np.geterr()["divide"], lambda value: np.seterr(divide=value), "raise"),
}


# Those that jit itself knows of; what another program asks for may be refused.
KNOWN = ("deterministic algorithms", "only warn", "flash attention", "math attention", "efficient attention")
KNOWN += ("attention of cuDNN", "fast path", "dtype")


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_the_program_asks_for(name: str) -> None:
    get, set_, value = SETTINGS[name]
    usual = get()

    @follows(worlds=1, may_refuse=name not in KNOWN)
    def story() -> Story:
        with put_back(get, set_):
            yield lambda x: x * 2 - 1 if get() == usual else x * 5
            set_(value)
            yield
            set_(usual)
            yield

    story()


def test_operators_that_deterministic_algorithms_forbid() -> None:
    table, index = torch.zeros(3), torch.tensor([0, 1])

    def program(x: Tensor) -> Tensor:
        return table.put(index, x[0, :2], accumulate=False) * 2 - 1

    @follows(worlds=1)
    def story() -> Story:
        yield program
        torch.use_deterministic_algorithms(True)
        yield

    try:
        story()
    finally:
        torch.use_deterministic_algorithms(False)


def _attend(x: Tensor) -> Tensor:
    q = x.reshape(1, 1, -1, 4)
    return F.scaled_dot_product_attention(q, q * 2, q - 1) * 2 - 1


@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_the_kernel_of_attention(kernel: Any) -> None:
    @follows(worlds=1, given=lambda: (torch.randn(64, 4),))
    def story() -> Story:
        yield _attend
        with sdpa_kernel(kernel):
            yield
        yield

    story()


def test_the_kernel_of_attention_chosen_inside_by_a_name_outside() -> None:
    chosen = [SDPBackend.MATH]

    def program(x: Tensor) -> Tensor:
        with sdpa_kernel(chosen[0]):
            return _attend(x)

    @follows(worlds=1, given=lambda: (torch.randn(64, 4),))
    def story() -> Story:
        yield program
        chosen[0] = SDPBackend.FLASH_ATTENTION
        yield

    story()


def test_the_fast_path_of_attention() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()

    @follows(worlds=1, given=lambda: (torch.randn(2, 3, 4),))
    def story() -> Story:
        yield lambda x: layer(x) * 2 - 1
        torch.backends.mha.set_fastpath_enabled(False)
        yield

    try:
        story()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("given", [True, False], ids=["argument", "no argument"])
def test_the_default_dtype(given: bool) -> None:
    def program(*args: Tensor) -> Tensor:
        return torch.ones(3) * 2 - sum(arg.sum() for arg in args)

    @follows(worlds=1, given=(lambda: (torch.randn(3),)) if given else nothing)
    def story() -> Story:
        yield program
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)
        yield

    try:
        story()
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_default_device() -> None:
    def program() -> Tensor:
        return torch.ones(3) * 2

    jitted = jit(program, on_refusal="eager")
    try:
        for device in ("cpu", "meta", "cpu"):
            torch.set_default_device(device)
            for _ in range(3):
                assert jitted().device.type == device
    finally:
        torch.set_default_device(None)


def test_the_default_device_as_a_context() -> None:
    def program() -> Tensor:
        return torch.ones(3) * 2

    jitted = jit(program, on_refusal="eager")
    for _ in range(3):
        assert jitted().device.type == "cpu"
    with torch.device("meta"):
        for _ in range(3):
            assert jitted().device.type == "meta"
    assert jitted().device.type == "cpu"


def test_settings_of_treeplay_are_no_part_of_a_program() -> None:
    jitted = jit(lambda x: x * 2 - 1)
    for most in (8, 9):
        with treeplay.settings.changed(max_rerecordings=most):
            for _ in range(3):
                jitted(torch.ones(3))
    assert jitted.statistics().recordings == 1
