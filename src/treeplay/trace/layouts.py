"""How operators laid out their results in the first, eager run, so that a trace's fakes are laid out alike.

    first run    hardtanh_backward of strides (256, 8, 1, 32) ─▶ gave strides (256, 8, 1, 32)
    trace        the same operator, the same question         ─▶ the fake that torch's rule made contiguous is laid out anew

torch's rules for running without data get the strides of several backwards wrong where a gradient comes transposed. A view that
such a fake allows is none on the real result, and a sum over another layout rounds in another way. They also get dtypes wrong:
the statistics of a batch norm on the CPU are float32 where the input is bfloat16 and the weight is float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

Question = tuple[Any, ...]
ShapeAndStride = tuple[tuple[int, ...], tuple[int, ...]]
Looks = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
Answer = tuple[Looks | None, ...]

_NUMBER = "number"  # a float, or the symbol that stands for one in a trace


def question(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Question | None:
    """What the layout of an operator's results follows from; None if they share memory with its arguments."""
    if any(result.alias_info is not None for result in func._schema.returns):
        return None
    return (str(func), _told(args), tuple((name, _told(value)) for name, value in kwargs.items()))


def answer(out: Any) -> Answer:
    """The shape, strides and dtype of each result of an operator."""
    return tuple(
        (tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype) if _is_strided(leaf) else None
        for leaf in (out if isinstance(out, (list, tuple)) else (out,))
    )


def laid_out(out: Any, wanted: Answer | None) -> Any:
    """The results with those replaced that are not as `wanted`. Called where new tensors are fakes."""
    if wanted is None or answer(out) == wanted:
        return out
    if not isinstance(out, (list, tuple)):
        return _alike(out, wanted[0])
    return type(out)(_alike(leaf, layout) for leaf, layout in zip(out, wanted, strict=True))


def _alike(leaf: Any, layout: Looks | None) -> Any:
    if layout is None or not _is_strided(leaf) or (leaf.shape, leaf.stride(), leaf.dtype) == layout:
        return leaf
    # What a library keeps for its backward is of a size that torch does not know.
    is_scratch = leaf.dtype == torch.uint8 and not leaf.numel()
    if leaf.shape != layout[0] and not is_scratch:
        return leaf
    shape, stride, dtype = layout
    return torch.empty_strided(shape, stride, dtype=dtype, device=leaf.device)


def _is_strided(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested


def _told(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.is_nested:  # of no shape
            return "nested"
        strides = tuple(value.stride()) if value.layout is torch.strided else None
        return tuple(value.shape), strides, value.dtype, value.device
    if isinstance(value, (list, tuple)):
        return tuple(map(_told, value))
    # Learning rates and counts differ from run to run, and no layout follows from them.
    return value if isinstance(value, (bool, int, str, type(None), torch.dtype, torch.device)) else _NUMBER
