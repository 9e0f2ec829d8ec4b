"""A tensor made of two, with a number beside; what is added to one half also shows in the other, times the number."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

from wrap.aot.oracle import numbers


class Pair(torch.Tensor):
    """Runs each operator on both halves."""

    @staticmethod
    def __new__(cls, a: Any, b: Any, tag: int = 0, size: Any = None, stride: Any = None) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            a.size() if size is None else size,
            strides=a.stride() if stride is None else stride,
            storage_offset=a.storage_offset(),
            dtype=a.dtype,
            device=a.device,
            layout=a.layout,
            requires_grad=a.requires_grad,
        )

    def __init__(self, a: Any, b: Any, tag: int = 0, size: Any = None, stride: Any = None) -> None:
        self.a, self.b, self.tag = a, b, tag

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.a}, {self.b}, {self.tag})"

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], {"tag": self.tag}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], inner["b"], context["tag"], size, stride)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        pairs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Pair)]
        made, tag = type(pairs[0]), max(pair.tag for pair in pairs)
        halves = []
        for half in ("a", "b"):
            inner_args, inner_kwargs = pytree.tree_map_only(Pair, lambda pair: getattr(pair, half), (args, kwargs))
            halves.append(func(*inner_args, **inner_kwargs))
        left, tree = pytree.tree_flatten(halves[0])
        right = pytree.tree_leaves(halves[1])
        out = [
            made(one, other, tag) if isinstance(one, torch.Tensor) else one
            for one, other in zip(left, right, strict=True)
        ]
        return return_and_correct_aliasing(func, args, kwargs, pytree.tree_unflatten(out, tree))


class Strict(Pair):
    """A pair that makes any gradient one of its kind."""

    def __coerce_same_metadata_as_tangent__(self, context: Any, kind: type | None = None) -> Any:
        return (kind or type(self))(self.a, self.b, context["tag"])


def pair(*size: int, tag: int = 0, grad: bool = False, kind: type[Pair] = Pair) -> Any:
    """A pair of distinct numbers."""
    return kind(numbers(*size), numbers(*size) * 3 + 1, tag).requires_grad_(grad)


def nested(*size: int, grad: bool = False) -> Any:
    """A pair of pairs."""
    inner = [Pair(numbers(*size) + k, numbers(*size) * 2 - k) for k in range(2)]
    return Pair(*inner).requires_grad_(grad)
