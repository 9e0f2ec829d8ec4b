"""Leaves over the memory of parameters, to stand for them while a body is recorded.

Autograd keeps one accumulator per leaf for as long as any history needs it, tied to the stream on which it was made. If a
loss from before is still alive, a capture would meet an accumulator of another stream, which CUDA does not allow. A stand-in
is a leaf of its own: same memory, no past.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from treeplay.torch_seam.trees import tree_map_only

_GETS_AND_SETS = ("__get__", "__set__", "__delete__")


class StandIns(TorchFunctionMode):
    """While it is entered, torch functions are given a stand-in wherever they would be given a leaf of somebody else's."""

    def __init__(self, own: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._own = {id(leaf): leaf for leaf in own}
        self.made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # id of a leaf -> the leaf, its stand-in

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in _GETS_AND_SETS:  # attributes are asked of, and set on, the leaf itself
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map_only(torch.Tensor, self._stand_in, (args, kwargs or {}))
        return func(*args, **kwargs)

    def resolved(self, leaves: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        """Each leaf that `leaves` stand for, with those that do, which may include the leaf itself."""
        leaf_of = {id(made): leaf for leaf, made in self.made.values()}
        found: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}
        for by in leaves:
            leaf = leaf_of.get(id(by), by)
            found.setdefault(id(leaf), (leaf, []))[1].append(by)
        return list(found.values())

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        if not (tensor.is_leaf and tensor.requires_grad) or id(tensor) in self._own:
            return tensor
        if id(tensor) not in self.made:
            made = tensor.detach().requires_grad_()
            if isinstance(tensor, torch.nn.Parameter):
                made = torch.nn.Parameter(made.detach())
            self._own[id(made)] = made
            self.made[id(tensor)] = (tensor, made)
        return self.made[id(tensor)][1]
