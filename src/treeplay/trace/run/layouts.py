"""How operators laid out their results in the first, eager run, so that a trace's fakes are laid out alike.

    first run    hardtanh_backward of strides (256, 8, 1, 32) ─▶ gave strides (256, 8, 1, 32)
    trace        the same operator, the same question         ─▶ the fake that torch's rule made contiguous is laid out anew
                 once the rule was right                      ─▶ no rule is asked: the fake is made as the first run tells

torch's rules for running without data get the strides of several backwards wrong where a gradient comes transposed. A view that
such a fake allows is none on the real result, and a sum over another layout rounds in another way. They also get dtypes wrong:
the statistics of a batch norm on the CPU are float32 where the input is bfloat16 and the weight is float32.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor  # by name: modules are watched while it is asked for

from treeplay.torch_seam.fakes import device_of
from treeplay.torch_seam.schemas import gives_back, gives_outs, is_elementwise, leaves_of, with_leaves
from treeplay.torch_seam.tensors import fills_new_memory

Question = tuple[Any, ...]
ShapeAndStride = tuple[tuple[int, ...], tuple[int, ...]]
Looks = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]

_STRIDED = torch.strided
_NUMBER = "number"  # a float, or the symbol that stands for one in a trace
_KINDS = {torch.SymInt: "int", complex: "complex"}  # give another dtype than a float does
_IS_TOLD = (bool, int, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)
_NO_NUMBER = (Tensor, *_IS_TOLD)


@dataclass(frozen=True, slots=True)
class Answer:
    """How the results of an operator lay: of each its shape, strides, dtype and device, or None if it was no such tensor.

    `container`: what several of them came in. `is_new`: each lay alone in memory that it filled, or was no result at all.
    `gives_back`: the operator wrote to its first argument and gave that back. `numbers`: those that no question shows."""

    looks: tuple[Looks | None, ...] = ()
    container: type | None = None
    is_new: bool = False
    gives_back: bool = False
    numbers: tuple[Any, ...] = ()

    @property
    def tells_all(self) -> bool:
        """Whether results can be made of this alone."""
        return self.is_new or self.gives_back

    def is_as(self, other: Answer) -> bool:
        """Whether the results lay alike."""
        return (self.looks, self.is_new, self.gives_back) == (other.looks, other.is_new, other.gives_back)


@lru_cache(maxsize=4096)
def _is_asked(func: Any) -> bool:
    is_apart = not any(result.alias_info is not None for result in func._schema.returns)
    return is_apart or gives_back(func) or gives_outs(func)


def question(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Question | None:
    """What the layout of an operator's results follows from; None if they share memory with its arguments, other than by being
    the first of them, or those at `out`."""
    if not _is_asked(func):
        return None
    # Of the numbers their kinds count, and an integer may be a symbol in a trace.
    if gives_outs(func) and is_elementwise(func):
        args = with_leaves(lambda leaf: "int" if type(leaf) is int else leaf, args)
    return (str(func), _told(args), tuple((name, _told(value)) for name, value in kwargs.items()))


def answer(func: Any, out: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Answer:
    """How an operator laid out its results."""
    numbers = numbers_not_asked(args, kwargs or {})
    if gives_back(func):
        return Answer(gives_back=out is args[0], numbers=numbers)
    several = isinstance(out, (list, tuple))
    leaves = out if several else (out,)
    looks = tuple(_looks(leaf) if _is_strided(leaf) else None for leaf in leaves)
    is_new = not gives_outs(func) and all(
        leaf is None or (look is not None and fills_new_memory(leaf)) for leaf, look in zip(leaves, looks, strict=True)
    )
    return Answer(looks, type(out) if several else None, is_new=is_new, numbers=numbers)


def laid_out(out: Any, wanted: Answer | None) -> Any:
    """The results with those replaced that are not as `wanted`. Called where new tensors are fakes."""
    if wanted is None or wanted.gives_back:
        return out
    if not isinstance(out, (list, tuple)):
        return _alike(out, wanted.looks[0])
    laid = [_alike(leaf, looks) for leaf, looks in zip(out, wanted.looks, strict=True)]
    return out if all(map(operator.is_, laid, out)) else type(out)(laid)


def _alike(leaf: Any, looks: Looks | None) -> Any:
    if looks is None or not _is_strided(leaf) or _looks(leaf) == looks:
        return leaf
    # What a library keeps for its backward is of a size that torch does not know.
    is_scratch = leaf.dtype == torch.uint8 and not leaf.numel()
    if leaf.shape != looks[0] and not is_scratch:
        return leaf
    shape, stride, dtype, device = looks
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _looks(leaf: torch.Tensor) -> Looks:
    return tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype, device_of(leaf)


def _is_strided(leaf: Any) -> bool:
    # The layout of a nested tensor may be called strided, too.
    return isinstance(leaf, Tensor) and leaf.layout is _STRIDED and not leaf.is_nested


def _told(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.is_nested:  # of no shape
            return "nested"
        strides = tuple(value.stride()) if value.layout is _STRIDED else None
        return tuple(value.shape), strides, value.dtype, device_of(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_told, value))
    if isinstance(value, bool):  # equal to a number, beside which a tensor of bools gives another dtype
        return bool, value
    if isinstance(value, _IS_TOLD):
        return value
    # Learning rates and counts differ from run to run, and no layout of theirs follows from them.
    return _KINDS.get(type(value), _NUMBER)


def numbers_not_asked(args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The numbers among an operator's arguments that its question leaves out; a symbol is equal to nothing."""
    leaves = (leaf for leaf in leaves_of((args, kwargs)) if not isinstance(leaf, _NO_NUMBER))
    return tuple(leaf if type(leaf) is float else object() for leaf in leaves)
