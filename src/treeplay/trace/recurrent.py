"""Weights of recurrent layers on a GPU, for a trace: their library looks for them in one piece of memory.

    torch.lstm(x, h, weights, ...)
      ├─ empty(0).set_(storage of the first weight)   a tensor over all weights, if they lie in one piece
      └─ _cudnn_rnn(x, weights, that tensor, ...)     without it if its addresses are not those of the weights

A tensor over whatever lies beside the first weight could not be checked from call to call, and a trace has no addresses. So
it puts the weights together itself, each where it lies in its storage, and hands the layer that: one copy of the weights
for each call of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

aten = torch.ops.aten
TAKES_ONE_PIECE = aten.set_.source_Storage
_PIECE = {aten._cudnn_rnn.default: 3}  # where a layer's operator takes it
_LAYERS = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


def weights_of(func: Callable[..., Any], args: Sequence[Any]) -> list[torch.Tensor]:
    """The weights that a recurrent layer is called with; none if `func` is no such layer."""
    if func not in _LAYERS:
        return []
    return [item for arg in args if isinstance(arg, (list, tuple)) for item in arg if isinstance(item, torch.Tensor)]


def in_one_piece(weights: Sequence[torch.Tensor], storage: torch.UntypedStorage) -> Iterator[tuple[torch.Tensor, Any]]:
    """Those of the weights that lie in a storage, each with its place in it: shape, strides and offset in elements."""
    for weight in weights:
        if weight.untyped_storage()._cdata == storage._cdata:
            yield weight, (tuple(weight.shape), weight.stride(), int(weight.storage_offset()))


def with_one_piece(func: Any, args: tuple[Any, ...], piece: torch.Tensor | None) -> tuple[Any, ...]:
    """The arguments of a layer's operator with `piece` where it was given none."""
    at = _PIECE.get(func)
    if at is None or piece is None or args[at] is not None:
        return args
    return (*args[:at], piece, *args[at + 1 :])
