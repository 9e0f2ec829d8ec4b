"""Results that alias static memory, and know when that memory was reused.

Any use that could read values asks the ticket first. Views, and whatever else comes back in the same memory, are guarded too;
results with memory of their own are ordinary tensors. What autograd saved before is watched by autograd itself: a replay
counts as a write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from treeplay.errors import StaleOutput
from treeplay.graphs.order import ReplayRun, Ticket
from treeplay.torch_seam.modes import DisableTorchFunctionSubclass
from treeplay.torch_seam.tensors import storage_of
from treeplay.torch_seam.trees import tree_iter, tree_map

_FREE = {
    getattr(torch.Tensor, name).__get__
    for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad_fn", "is_cuda", "grad")
} | {
    getattr(torch.Tensor, name)
    for name in ("size", "stride", "dim", "numel", "element_size", "is_contiguous", "__len__")
}
"""What tells nothing of the values, and so may be asked of a stale output too."""

_COPYING = {torch.Tensor.__deepcopy__, torch.Tensor.__reduce_ex__}
"""What copies the attributes of a tensor with it; the claim is not one to copy."""


class GuardedOutput(torch.Tensor):
    """A tensor in static memory. Using it after a later replay reused the memory raises `StaleOutput`."""

    _claim: tuple[Ticket, ReplayRun, int]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with DisableTorchFunctionSubclass():
            if func in _FREE:
                return func(*args, **kwargs)
            claims = _claims((args, kwargs))
            for ticket, run, index in claims.values():
                _check(ticket, run, index)
            if func in _COPYING:
                args = (args[0].as_subclass(torch.Tensor), *args[1:])
            result = func(*args, **kwargs)
            return tree_map(lambda leaf: _guarded_again(leaf, claims), result)


def guard(tensor: torch.Tensor, ticket: Ticket, run: ReplayRun, index: int) -> torch.Tensor:
    """`tensor`, which is output number `index` of `run`, guarded by `ticket`."""
    guarded = tensor.as_subclass(GuardedOutput)
    guarded._claim = (ticket, run, index)
    return guarded


def checked_tensor(value: Any) -> Any:
    """A guarded output as an ordinary tensor, checked; anything else as it is."""
    if type(value) is not GuardedOutput:
        return value
    _check(*value._claim)
    with DisableTorchFunctionSubclass():
        return value.as_subclass(torch.Tensor)


def _claims(arguments: Any) -> dict[int, tuple[Ticket, ReplayRun, int]]:
    """The claims of the guarded tensors among `arguments`, by the storage they are on."""
    return {storage_of(leaf): leaf._claim for leaf in tree_iter(arguments) if type(leaf) is GuardedOutput}


def _guarded_again(leaf: Any, claims: dict[int, tuple[Ticket, ReplayRun, int]]) -> Any:
    if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided:
        return leaf
    claim = claims.get(storage_of(leaf))
    return leaf if claim is None else guard(leaf, *claim)


def _check(ticket: Ticket, run: ReplayRun, index: int) -> None:
    spoiler = ticket.spoiler()
    if spoiler is not None:
        raise StaleOutput(
            f"output {index} of {run} was used after {spoiler} reused its memory. To keep a result, clone it before the next "
            'call, or wrap with outputs="copy"'
        )
