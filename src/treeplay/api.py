"""`treeplay.jit` and `treeplay.reset`: what a user calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

import torch

from treeplay.device.holders import reset_all
from treeplay.errors import ArgumentError, ArgumentTypeError
from treeplay.module import jit_module
from treeplay.plan.choose import LOWERINGS
from treeplay.program import Jitted, Lower, OnRefusal

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=torch.nn.Module)


@overload
def jit(program: M, *, lower: Lower = ..., on_refusal: OnRefusal = ...) -> M: ...  # type: ignore[overload-overlap]
@overload
def jit(program: Callable[P, R], *, lower: Lower = ..., on_refusal: OnRefusal = ...) -> Jitted[P, R]: ...
@overload
def jit(
    program: None = None, *, lower: Lower = ..., on_refusal: OnRefusal = ...
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


def jit(program: Any = None, *, lower: Lower = "auto", on_refusal: OnRefusal = "eager") -> Any:
    """Record `program` on its second call, on a GPU on its third, and replay it from then on.

    `program` is any callable, method or module: a whole training step that calls backward and the optimizer itself,
    inference, or one whose results the caller differentiates, later, in parts, or never. Tensors in its arguments (nested
    containers, dataclasses, and objects made for each call that hold tensors) may change from call to call; their shapes,
    strides, dtypes and devices, and all Python values, are part of the key. State it reaches (parameters, buffers, optimizer
    state, gradients, tensors of its closure) is updated in place, as eager would.

    `lower`: "inductor" compiles, "aten" runs the operators from a static plan, "auto" picks between these. "capture" does not
    trace: the program's own kernels are recorded as it launches them (Triton, extensions, a compiled model inside).
    `on_refusal`: "eager" runs a program that cannot be recorded as it is, with one warning; "raise" raises
    `treeplay.Refusal`.

    Without `program` it returns a decorator. For a module it returns a module of the same class that shares its
    parameters, its `state_dict` keys and its train/eval mode.
    """
    if lower not in LOWERINGS:
        raise ArgumentError(f"lower: expected one of {', '.join(LOWERINGS)}, found {lower!r}")
    if on_refusal not in ("eager", "raise"):
        raise ArgumentError(f"on_refusal: expected 'eager' or 'raise', found {on_refusal!r}")
    if program is None:
        return functools.partial(jit, lower=lower, on_refusal=on_refusal)
    if isinstance(program, (classmethod, staticmethod)):
        return type(program)(jit(program.__func__, lower=lower, on_refusal=on_refusal))
    if not callable(program):
        raise ArgumentTypeError(f"jit: expected a callable or a module, found {type(program).__name__}")
    if isinstance(program, torch.nn.Module):
        return jit_module(program, lower=lower, on_refusal=on_refusal)
    return Jitted(program, lower=lower, on_refusal=on_refusal)


def reset() -> None:
    """Free all recordings: of jitted programs, of graphs of `torch.compile`, of graphed callables. The next call of each is a
    first call; results stay what they are. Graphs recorded explicitly (`treeplay.graphs.Graph`) belong to their owners."""
    reset_all()
