"""Operators that a compiler could only call, written out in plain ones, so that it can fuse them.

    _fused_adamw_(params, grads, ..., lr=lr, grad_scale=scale, found_inf=found)   ─▶   a few elementwise operators per tensor

Each does what torch's own kernel does, in the order of its arithmetic, and writes in place. Half-precision tensors are
computed in float32, as kernels do; numbers that all elements share are computed once, in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.lower.functional import computed_once

aten = torch.ops.aten
Tensor = torch.Tensor
TensorList = Sequence[Tensor]


def _wide(tensor: Tensor) -> Tensor:
    """A tensor in the type that kernels compute it in."""
    return tensor.to(torch.float32) if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _shared(number: Any, beside: Tensor) -> Any:
    """A number that all elements of `beside` share, computed once; plain ones as they are."""
    return computed_once(number.to(beside.dtype)) if isinstance(number, Tensor) else number


def _is_any(decay: Any) -> bool:
    """Whether there is a weight decay. Where it is an input, a trace has made it a condition that it is not zero."""
    return isinstance(decay, Tensor) or decay != 0


@dataclass(frozen=True, slots=True)
class _FusedStep:
    """What every fused optimizer does around its own arithmetic: gradients are unscaled, and a step may be skipped."""

    maximize: bool
    grad_scale: Tensor | None
    found_inf: Tensor | None

    def gradient(self, grad: Tensor) -> Tensor:
        """The unscaled gradient, in the type to compute in; the tensor itself is unscaled too."""
        wide = _wide(grad)
        if self.grad_scale is not None:
            wide = wide / self.grad_scale.to(wide.dtype)
            self.write(grad, wide)
        return -wide if self.maximize else wide

    def write(self, target: Tensor, value: Tensor) -> None:
        """Write `value`, unless the step is skipped."""
        value = value.to(target.dtype)
        if self.found_inf is not None:
            value = torch.where(self.found_inf.to(target.device) == 1, target, value)
        target.copy_(value)


def _fused(formula: Callable[..., None]) -> Callable[..., None]:
    """An optimizer's operator, by the arithmetic inside of its `_FusedStep`."""

    def run(*lists: TensorList, maximize: bool, grad_scale: Any = None, found_inf: Any = None, **options: Any) -> None:
        formula(_FusedStep(maximize, grad_scale, found_inf), *lists, **options)

    return run


def _adam(
    step: _FusedStep,
    params: TensorList,
    grads: TensorList,
    means: TensorList,
    squares: TensorList,
    largest: TensorList,
    steps: TensorList,
    *,
    is_decoupled: bool,
    lr: Any,
    beta1: Any,
    beta2: Any,
    weight_decay: Any,
    eps: Any,
    amsgrad: bool,
) -> None:
    for index, (param, mean, square) in enumerate(zip(params, means, squares, strict=True)):
        grad, wide = step.gradient(grads[index]), _wide(param)
        count = steps[index].to(torch.float64)
        size = _shared(lr / (1 - beta1**count), wide)
        root = _shared((1 - beta2**count).sqrt(), wide)
        if _is_any(weight_decay):
            if is_decoupled:
                wide = wide - _shared(lr * weight_decay, wide) * wide
            else:
                grad = grad + _shared(weight_decay, wide) * wide
        new_mean = torch.lerp(_wide(mean), grad, _shared(1 - beta1, wide))
        new_square = _shared(beta2, wide) * _wide(square) + _shared(1 - beta2, wide) * grad * grad
        spread = new_square
        if amsgrad:
            spread = torch.maximum(_wide(largest[index]), new_square)
            step.write(largest[index], spread)
        step.write(mean, new_mean)
        step.write(square, new_square)
        step.write(param, wide - size * new_mean / (spread.sqrt() / root + _shared(eps, wide)))


def _sgd(
    step: _FusedStep,
    params: TensorList,
    grads: TensorList,
    buffers: TensorList,
    *,
    weight_decay: Any,
    momentum: Any,
    lr: Any,
    dampening: Any,
    nesterov: bool,
    is_first_step: bool,
) -> None:
    for index, param in enumerate(params):
        grad, wide = step.gradient(grads[index]), _wide(param)
        if _is_any(weight_decay):
            grad = grad + _shared(weight_decay, wide) * wide
        if buffers:
            buffer = buffers[index]
            past = _shared(momentum, wide)
            new = grad if is_first_step else past * _wide(buffer) + _shared(1 - dampening, wide) * grad
            step.write(buffer, new)
            grad = grad + past * new if nesterov else new
        step.write(param, wide - _shared(lr, wide) * grad)


def _adagrad(
    step: _FusedStep,
    params: TensorList,
    grads: TensorList,
    sums: TensorList,
    steps: TensorList,
    *,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
) -> None:
    for index, param in enumerate(params):
        grad, wide = step.gradient(grads[index]), _wide(param)
        rate = _shared(lr / (1 + (steps[index].to(torch.float64) - 1) * lr_decay), wide)
        if _is_any(weight_decay):
            grad = grad + _shared(weight_decay, wide) * wide
        total = _wide(sums[index]) + grad * grad
        step.write(sums[index], total)
        step.write(param, wide - rate * grad / (total.sqrt() + _shared(eps, wide)))


def _unscale(grads: TensorList, found_inf: Tensor, inverse: Tensor) -> None:
    """Multiply gradients by `inverse`, and set `found_inf` to 1 if one of their elements is not finite."""
    if not grads:
        return
    are_finite = functools.reduce(torch.logical_and, [torch.isfinite(grad).all() for grad in grads])
    found_inf.copy_(torch.where(are_finite, found_inf, 1.0))
    for grad in grads:
        wide = _wide(grad)
        grad.copy_((wide * inverse.to(wide.dtype)).to(grad.dtype))


def _update_scale(
    scale: Tensor, tracker: Tensor, found_inf: Tensor, growth: float, backoff: float, interval: int
) -> Tensor:
    """Shrink the scale after an overflow; let it grow after `interval` steps without one, as long as it stays finite."""
    was_found = found_inf != 0
    count = tracker + 1
    is_due = count == interval
    exact = scale.to(torch.float64)
    grown = (exact * growth).to(scale.dtype)
    grown = torch.where(is_due & torch.isfinite(grown), grown, scale)
    tracker.copy_(torch.where(was_found | is_due, 0, count))
    return scale.copy_(torch.where(was_found, (exact * backoff).to(scale.dtype), grown))


def _written_out() -> dict[Any, Callable[..., Any]]:
    fused: dict[str, Callable[..., Any]] = {
        "_fused_adam_": _fused(functools.partial(_adam, is_decoupled=False)),
        "_fused_adamw_": _fused(functools.partial(_adam, is_decoupled=True)),
        "_fused_sgd_": _fused(_sgd),
        "_fused_adagrad_": _fused(_adagrad),
    }
    table: dict[Any, Callable[..., Any]] = {
        aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
        aten._amp_update_scale_.default: _update_scale,
    }
    for name, formula in fused.items():
        packet = getattr(aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            table[getattr(packet, overload)] = formula
    return table


WRITTEN_OUT: dict[Any, Callable[..., Any]] = _written_out()
