"""Products of a batch with one matrix, `(8, 3, 3) @ (1, 3, 3)`: by the operators that eager takes.

Where nobody watches, torch repeats the one matrix and multiplies batches. Under a dispatch mode it takes the batch for one
large matrix, as it does where the one matrix needs a gradient, and the last bits differ. So the matrix is repeated
before torch is asked. A repeated matrix is a view: nothing is copied, here or there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from treeplay.torch_seam.fakes import CLASSES_WITHOUT_DATA
from treeplay.torch_seam.modes import DisableTorchFunction, has_plain_class, is_transformed
from treeplay.torch_seam.tensors import replaced_methods

_PRODUCTS = frozenset((torch.matmul, torch.linalg.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__))
_NAMES = ("input", "other")


class ProductsAsEager(TorchFunctionMode):
    """For a block, products take eager's way in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self._replaced = replaced_methods()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func, kwargs = self._replaced.get(func, func), kwargs or {}
        if func in _PRODUCTS:
            args = (*args, *(kwargs[name] for name in _NAMES if name in kwargs))
            kwargs = {name: value for name, value in kwargs.items() if name not in _NAMES}
            args = _of_one_batch(*args)
        return func(*args, **kwargs)


def _of_one_batch(*factors: Any) -> tuple[Any, ...]:
    """The factors of a product, the single matrix among them repeated where eager would repeat it."""
    if is_transformed() or len(factors) != len(_NAMES) or not all(map(_is_plain, factors)):
        return factors
    with DisableTorchFunction():  # nobody but us asks
        if not all(factor.dim() == 3 and factor.layout is torch.strided for factor in factors):
            return factors
        sizes = [factor.shape[0] for factor in factors]
        repeated = [size == 1 and not factor.requires_grad for size, factor in zip(sizes, factors, strict=True)]
        if sizes[0] == sizes[1] or not any(repeated):
            return factors
    return tuple(
        factor.expand(other, -1, -1) if is_repeated else factor
        for factor, other, is_repeated in zip(factors, reversed(sizes), repeated, strict=True)
    )


def _is_plain(factor: Any) -> bool:
    return type(factor) in CLASSES_WITHOUT_DATA or has_plain_class(factor)
