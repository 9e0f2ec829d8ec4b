"""Tells of the memory that operators allocate for their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from treeplay.device.protocol import Births
from treeplay.torch_seam.modes import TorchDispatchMode
from treeplay.torch_seam.schemas import leaves_of
from treeplay.torch_seam.tensors import storage_of


class ResultsTold(TorchDispatchMode):
    """While it is entered, each result in memory of its own is told to `births`; views and what is written in place are not."""

    supports_higher_order_operators = True
    """They are seen as one operator each; what is inside of them is not looked at."""

    def __init__(self, births: Births) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._births = births

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Compiled functions inside stay compiled."""
        return True

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = self._births.now()
        result = func(*args, **(kwargs or {}))
        tell_results(self._births, before, (args, kwargs or {}), result)
        return result


def tell_results(births: Births, before: int, given: Any, result: Any) -> None:
    """Tell of the results of an operator that lie in none of the tensors it was given; `before`: the time before it ran."""
    taken = {storage_of(leaf) for leaf in leaves_of(given) if isinstance(leaf, torch.Tensor)}
    for tensor in leaves_of(result):
        if isinstance(tensor, torch.Tensor) and storage_of(tensor) not in taken:
            births.born(tensor, before)
