"""Two tensors of one shape and dtype, element by element: which differ, and by how much."""

from __future__ import annotations

import torch

from treeplay.values.verdict import Elements, Worst

# Relative and absolute, as torch.testing has them: about the error of a few operations in that precision.
_AUTO = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}
_PARTS = {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}


def auto_tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """The relative and the absolute tolerance that suit `dtype`, a floating or complex one."""
    part = _PARTS.get(dtype, dtype)
    return _AUTO.get(part) or (2 * torch.finfo(part).eps, 1e-5)


def is_inexact(dtype: torch.dtype) -> bool:
    """Whether `dtype` holds rounded numbers: floating or complex."""
    return dtype.is_floating_point or dtype.is_complex


def widest(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` in double precision, where a difference of two halves is neither lost nor infinite."""
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def bad_elements(
    ref: torch.Tensor, res: torch.Tensor, *, rtol: float, atol: float, equal_nan: bool
) -> torch.Tensor | None:
    """A mask of the elements of `res` that are not within tolerance of `ref`, or None if all are.

    Integers and booleans must be equal. Infinities are within tolerance of the same infinity only.
    """
    if ref.dtype.itemsize > 1 and torch.equal(ref, res):
        return None  # by far the most common answer, and it needs no wider copy
    if is_inexact(ref.dtype):
        bad = ~torch.isclose(widest(res), widest(ref), rtol=rtol, atol=atol, equal_nan=equal_nan)
    else:
        bad = ref != res
    return bad if bool(bad.any()) else None


def describe_elements(ref: torch.Tensor, res: torch.Tensor, bad: torch.Tensor) -> Elements:
    """How far the elements marked in `bad` (at least one) are off."""
    wide_ref = widest(ref)
    error = (widest(res) - wide_ref).abs()
    if not is_inexact(ref.dtype):
        error = error.clamp(min=1)  # large neighbouring integers are one double
    error = torch.where(bad, error.nan_to_num(nan=torch.inf, posinf=torch.inf), 0)
    size = wide_ref.abs()
    relative = torch.where(bad, (error / size).nan_to_num(nan=torch.inf, posinf=torch.inf), 0)
    return Elements(int(bad.sum()), bad.numel(), _worst(error), _worst(relative))


def rms_error(tensor: torch.Tensor, exact: torch.Tensor) -> float:
    """The root of the mean squared difference of `tensor` from the double precision `exact`."""
    return float((widest(tensor) - exact).abs().square().mean().sqrt())


def _worst(error: torch.Tensor) -> Worst:
    flat = int(error.argmax())
    index = torch.unravel_index(torch.tensor(flat), error.shape)
    return Worst(float(error.flatten()[flat]), tuple(int(i) for i in index))
