"""One leaf of a result against the reference's: which rule decides, and what to say if it fails.

both tensors or floats ──▶ layout ─▶ shape ─▶ dtype ─▶ elements: exact, or within tolerance, or by float64
anything else          ──▶ equality
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from treeplay.errors import ArgumentError, ArgumentTypeError, TreeplayError
from treeplay.observe.elements import auto_tolerance, bad_elements, describe_elements, is_inexact, rms_error, widest
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.values.verdict import Float64Errors, LeafFailure, Rule

_PLAIN = (str, int, bool, type(None), torch.device, torch.dtype)
_LOOSE = 0.04  # how near a result must be to the float64 reference to pass where the reference itself is NaN
_FLOAT64 = (torch.float64, torch.complex128)
_HIGHER_PRECISION = "the reference's own error is not finite: run the reference in higher precision"


class UnsupportedLeafError(TreeplayError, RuntimeError):
    """A value in a result is of a type that the comparison has no rule for."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How strict a comparison is; `tol` is relative and absolute, "auto" goes by the data's precision."""

    tol: float | Literal["auto"] = 1e-4
    exact_dtype: bool = True
    equal_nan: bool = False
    ignore_non_float: bool = False

    def tolerance(self, dtype: torch.dtype) -> tuple[float, float]:
        """The relative and the absolute tolerance for `dtype`."""
        return (self.tol, self.tol) if self.tol != "auto" else auto_tolerance(dtype)


def judge_leaf(
    ref: Any, res: Any, ref64: Any, *, path: str, rules: Rules, hint: Callable[[str], None]
) -> LeafFailure | None:
    """What is wrong with the leaf `res`, or None.

    Raises `UnsupportedLeafError` if a leaf has a type without a rule, `ArgumentTypeError` if it has no data.
    """
    for leaf in (ref, res):
        _check_leaf(leaf, path)
    if rules.ignore_non_float and not (_is_float(ref) or _is_float(res)):
        return None
    if _is_number(ref) and _is_number(res):
        return _judge_tensors(*_as_tensors(ref, res), ref64, path=path, rules=rules, hint=hint)
    if _is_number(ref) or _is_number(res):
        return LeafFailure(path, "kind", f"expected {_kind(ref)}, found {_kind(res)}")
    if ref == res:
        return None
    return LeafFailure(path, "value", f"expected {ref!r}, found {res!r}")


def has_rule(value: object) -> bool:
    """Whether there is a rule for `value` as a leaf."""
    return isinstance(value, (torch.Tensor, float, *_PLAIN))


def _check_leaf(leaf: object, path: str) -> None:
    if not has_rule(leaf):
        raise UnsupportedLeafError(f"result{path}: no rule to compare values of type {type(leaf).__name__}")
    if isinstance(leaf, FakeTensor) or (isinstance(leaf, torch.Tensor) and leaf.is_meta):
        raise ArgumentTypeError(f"result{path}: a {type(leaf).__name__} without data has nothing to compare")


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, (torch.Tensor, float))


def _is_float(leaf: object) -> bool:
    return isinstance(leaf, float) or (isinstance(leaf, torch.Tensor) and (is_inexact(leaf.dtype) or leaf.is_quantized))


def _kind(leaf: object) -> str:
    return "a tensor" if isinstance(leaf, torch.Tensor) else f"{leaf!r} ({type(leaf).__name__})"


def _as_tensors(ref: torch.Tensor | float, res: torch.Tensor | float) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as tensors without history; a Python float has no precision of its own and takes the other's."""
    return _as_tensor(ref, like=res), _as_tensor(res, like=ref)


def _as_tensor(leaf: torch.Tensor | float, *, like: object) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach()
    takes_other = isinstance(like, torch.Tensor) and is_inexact(like.dtype)
    return torch.tensor(leaf, dtype=like.dtype if takes_other else torch.float64)  # type: ignore[attr-defined]


def _judge_tensors(
    ref: torch.Tensor, res: torch.Tensor, ref64: Any, *, path: str, rules: Rules, hint: Callable[[str], None]
) -> LeafFailure | None:
    def failure(rule: Rule, expected: object, found: object) -> LeafFailure:
        reason = f"expected {expected}, found {found}"
        return LeafFailure(path, rule, reason, tuple(ref.shape), _name(ref.dtype))

    if _is_sparse(ref) != _is_sparse(res):
        return failure("layout", ref.layout, res.layout)
    if ref.shape != res.shape:
        return failure("shape", tuple(ref.shape), tuple(res.shape))
    if rules.exact_dtype and ref.dtype != res.dtype:
        return failure("dtype", _name(ref.dtype), _name(res.dtype))
    ref, res = _dense(ref).to(res.device), _dense(res)
    return _judge_elements(ref.to(res.dtype), res, ref64, path=path, rules=rules, hint=hint)


def _judge_elements(
    ref: torch.Tensor, res: torch.Tensor, ref64: Any, *, path: str, rules: Rules, hint: Callable[[str], None]
) -> LeafFailure | None:
    is_float = is_inexact(ref.dtype)
    rtol, atol = rules.tolerance(ref.dtype) if is_float else (0.0, 0.0)
    bad = bad_elements(ref, res, rtol=rtol, atol=atol, equal_nan=rules.equal_nan)
    if bad is None:
        return None
    errors: Float64Errors | None = None
    rule: Rule = "exact"
    reason = "elements differ"
    if is_float:
        rule, reason = "tolerance", f"not within rtol {rtol:g}, atol {atol:g}"
        if (exact := _float64_reference(ref64, ref, path)) is not None:
            errors = _float64_errors(ref, res, exact, tol=atol)
            if _passes_by_float64(ref, res, exact, errors, equal_nan=rules.equal_nan, hint=hint):
                return None
            rule, reason = "float64", f"{reason}, and too far from the float64 reference"
            if not math.isfinite(errors.reference):
                reason = f"{reason} ({_HIGHER_PRECISION})"
    return LeafFailure(path, rule, reason, tuple(ref.shape), _name(ref.dtype), describe_elements(ref, res, bad), errors)


def _float64_reference(ref64: Any, ref: torch.Tensor, path: str) -> torch.Tensor | None:
    """The float64 reference for the leaf `ref`, if there is one: anything of lower precision is none."""
    if isinstance(ref64, float):
        ref64 = torch.tensor(ref64, dtype=torch.float64)
    if not isinstance(ref64, torch.Tensor) or ref64.dtype not in _FLOAT64:
        return None
    if ref64.shape != ref.shape:
        shapes = f"{tuple(ref64.shape)}, the reference {tuple(ref.shape)}"
        raise ArgumentError(f"result{path}: the float64 reference has shape {shapes}")
    return _dense(ref64.detach()).to(ref.device)


def _float64_errors(ref: torch.Tensor, res: torch.Tensor, exact: torch.Tensor, *, tol: float) -> Float64Errors:
    return Float64Errors(rms_error(res, exact), rms_error(ref, exact), _multiplier(res, tol), tol)


def _multiplier(res: torch.Tensor, tol: float) -> float:
    """How many times the reference's error a result may have: more where noise rules the mean."""
    is_half = res.dtype in (torch.float16, torch.bfloat16)
    is_pointwise = res.ndim == 4 and res.shape[2:] == (1, 1)
    return 3.0 if is_half or is_pointwise or res.numel() < 1000 or tol >= 0.02 else 2.0


def _passes_by_float64(
    ref: torch.Tensor,
    res: torch.Tensor,
    exact: torch.Tensor,
    errors: Float64Errors,
    *,
    equal_nan: bool,
    hint: Callable[[str], None],
) -> bool:
    if ref.isnan().any() and not res.isnan().any() and not exact.isnan().any() and _is_near(res, exact):
        return True  # the reference broke down, the result did not: it is the better of the two
    if not math.isfinite(errors.reference):
        hint(_HIGHER_PRECISION)
    if math.isnan(errors.reference):
        return equal_nan and math.isnan(errors.result)
    return errors.result <= errors.multiplier * errors.reference + errors.tol / 10


def _is_near(res: torch.Tensor, exact: torch.Tensor) -> bool:
    return torch.allclose(widest(res), exact.to(widest(res).dtype), rtol=_LOOSE, atol=_LOOSE)


def _is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout not in (torch.strided, torch.jagged)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
