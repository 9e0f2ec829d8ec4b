"""Averages of weights: `AveragedModel.update_parameters` while a program is traced.

Eager asks on the host whether this is the first update, which copies the weights instead of averaging. A recording cannot wait
for the answer: it averages, and takes the weights themselves where the answer was yes.

    average.update_parameters(model)  ─▶  is_first = n_averaged == 0
                                          the update, as of any later call
                                          where(is_first, weight, average, out=average)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from treeplay.torch_seam.patched import Shared


class _LaterCount:
    """Stands in for the count of updates, which is only asked whether it is zero, and says no."""

    def __init__(self, count: torch.Tensor) -> None:
        self._count = count

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]

    def __gt__(self, other: object) -> bool:
        return True

    def __iadd__(self, other: int) -> torch.Tensor:
        return self._count.add_(other)  # by which the count is itself again

    def __getattr__(self, name: str) -> Any:
        return getattr(self._count, name)


def _update(original: Callable[..., None], is_wanted: Callable[[], bool]) -> Callable[..., None]:
    def update_parameters(self: AveragedModel, model: torch.nn.Module) -> None:
        if not is_wanted():
            original(self, model)
            return
        count = self.n_averaged
        is_first = count == 0
        # Past `Module.__setattr__`, which takes nothing but a tensor for a buffer.
        self._buffers["n_averaged"] = _LaterCount(count)  # type: ignore[assignment]
        try:
            original(self, model)
        finally:
            self._buffers["n_averaged"] = count
        with torch.no_grad():
            for average, weight in _pairs(self, model):
                here = average.device
                torch.where(is_first.to(here), weight.detach().to(here), average.detach(), out=average.detach())

    return update_parameters


def _pairs(average: AveragedModel, model: torch.nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What is averaged, with what it is an average of. Buffers that are not averaged are copied each time."""
    if not average.use_buffers:
        return zip(average.parameters(), model.parameters(), strict=False)
    own = itertools.chain(average.module.parameters(), average.module.buffers())
    return zip(own, itertools.chain(model.parameters(), model.buffers()), strict=False)


UPDATES_OF_AVERAGES = Shared(AveragedModel, "update_parameters", _update)
"""Where they are wanted, updates do not ask on the host how many there were."""
