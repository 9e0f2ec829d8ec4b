"""Operators written out: each does what torch's own kernel does, skipped steps and unscaled gradients included."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from treeplay.lower.inductor.written_out import WRITTEN_OUT

aten = torch.ops.aten
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.gpu,
    ),
]
SCALES = [None, (4.0, 0.0), (4.0, 1.0)]


def tensors(device: str, count: int = 2, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(3, 5 + index, device=device).abs().to(dtype) for index in range(count)]


def compare(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run the operator and its formula on copies; all they were given must agree."""
    copies = [
        torch.utils._pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, args)
        for _ in range(2)
    ]
    op(*copies[0], **kwargs)
    WRITTEN_OUT[op](*copies[1], **kwargs)
    for expected, found in zip(*map(torch.utils._pytree.tree_leaves, copies), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=3e-6, atol=1e-6)


def scaling(device: str, scale: Any) -> dict[str, Any]:
    if scale is None:
        return {}
    return dict(zip(("grad_scale", "found_inf"), torch.tensor(scale, device=device).unbind(), strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
def test_adam(name: str, scale: Any, device: str) -> None:
    for amsgrad, maximize, decay, is_tensor in itertools.product(
        [False, True], [False, True], [0.0, 0.1], [False, True]
    ):
        groups = [tensors(device) for _ in range(5)]
        steps = [torch.tensor(float(3 + index), device=device) for index in range(2)]
        lr = torch.tensor(0.1, device=device) if is_tensor else 0.1
        numbers = {"lr": lr, "beta1": 0.9, "beta2": 0.99, "weight_decay": decay, "eps": 1e-8}
        flags = {"amsgrad": amsgrad, "maximize": maximize}
        op = getattr(getattr(aten, name), "tensor_lr" if is_tensor else "default")
        if not amsgrad:
            groups[4] = []
        compare(op, (*groups, steps), numbers | flags | scaling(device, scale))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", SCALES)
def test_sgd(scale: Any, device: str) -> None:
    for nesterov, maximize, first, momentum in itertools.product(
        [False, True], [False, True], [False, True], [0.0, 0.9]
    ):
        buffers = tensors(device) if momentum else []
        kwargs = {"weight_decay": 0.1, "momentum": momentum, "lr": 0.1, "dampening": 0.0 if nesterov else 0.2}
        flags = {"nesterov": nesterov, "maximize": maximize, "is_first_step": first}
        args = tensors(device), tensors(device), buffers
        compare(aten._fused_sgd_.default, args, kwargs | flags | scaling(device, scale))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("maximize", [False, True])
def test_adagrad(maximize: bool, scale: Any) -> None:
    steps = [torch.tensor(3.0), torch.tensor(4.0)]
    kwargs = {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8, "maximize": maximize}
    args = tensors("cpu"), tensors("cpu"), tensors("cpu"), steps
    compare(aten._fused_adagrad_.default, args, kwargs | scaling("cpu", scale))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bad", [None, torch.inf, -torch.inf, torch.nan])
def test_unscaling(bad: float | None, dtype: torch.dtype, device: str) -> None:
    if device == "cuda" and dtype is torch.bfloat16:
        pytest.skip("torch has no such kernel")
    grads = tensors(device, dtype=dtype)
    if bad is not None:
        grads[1][2, 1] = bad
    inverse = torch.tensor(1 / 3, device=device)
    for found in (0.0, 1.0):
        args = grads, torch.tensor(found, device=device), inverse
        compare(aten._amp_foreach_non_finite_check_and_unscale_.default, args, {})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [1.0, 3.7, 2e38])
@pytest.mark.parametrize("found", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("tracker", [0, 1, 2, 5])
def test_updating_the_scale(tracker: int, found: float, scale: float, device: str) -> None:
    numbers = torch.tensor(scale, device=device), torch.tensor(tracker, dtype=torch.int32, device=device)
    compare(aten._amp_update_scale_.default, (*numbers, torch.tensor(found, device=device), 2.3, 0.37, 3), {})


def test_half_precision_parameters_are_computed_in_float32() -> None:
    groups = [tensors("cpu", dtype=torch.bfloat16) for _ in range(4)]
    steps = [torch.tensor(3.0), torch.tensor(3.0)]
    numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
    before = [group[0].float() for group in groups]
    WRITTEN_OUT[aten._fused_adamw_.default](*groups, [], steps, **numbers, amsgrad=False, maximize=False)
    param, grad, mean, square = before
    mean = mean + 0.1 * (grad - mean)
    square = 0.99 * square + 0.01 * grad * grad
    spread = square.sqrt() / (1 - 0.99**3) ** 0.5 + 1e-8
    expected = param * (1 - 0.1 * 0.1) - 0.1 / (1 - 0.9**3) * mean / spread
    torch.testing.assert_close(groups[0][0], expected.to(torch.bfloat16))
