"""Tensors that come through `.data`, which count their versions by themselves, and which of the results are such.

d = x.data; return x * w, d           a write to the result `d` is none to what the backward needs
d = x.data; return d * w, d           here it is: the backward needs `d`, by its own counter
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.torch_seam.autograd import shares_version


class ThroughData:
    """What came through `.data` in a function that is traced, and what was made of that, as views are."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._counting: list[torch.Tensor] = []  # with a counter that began there
        self._differentiated: list[torch.Tensor] = []

    def __contains__(self, tensor: Any) -> bool:
        return any(tensor is one for one in self.tensors)

    def note(self, func: Callable[..., Any], given: Sequence[torch.Tensor], result: Any) -> None:
        """Note what a call gave, and which of these tensors it was given."""
        is_data = func is torch.Tensor.data.__get__ or getattr(func, "__self__", None) is torch.Tensor.data  # type: ignore[attr-defined]
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if not isinstance(one, torch.Tensor):
                continue
            if is_data:
                self._counting.append(one)
            if is_data or given:
                self.tensors.append(one)
            if one.requires_grad:  # its backward may need them as they are now
                self._differentiated += given

    def own_versions(self, results: Sequence[Any]) -> set[int]:
        """The results with counters that nobody else has: no backward inside, and no other result."""
        found = {k: result for k, result in enumerate(results) if result in self and not result.requires_grad}
        return {
            k
            for k, result in found.items()
            if any(shares_version(result, one) for one in self._counting)
            and not any(shares_version(result, one) for one in self._differentiated)
            and not any(shares_version(result, other) for other in found.values() if other is not result)
        }
