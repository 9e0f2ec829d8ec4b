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
_LAYER = aten._cudnn_rnn.default
_PIECE, _DROPOUT, _IS_TRAINED, _DROPOUT_STATE = 3, 11, 12, 15  # places among its arguments
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


def asked_of(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an operator that the layout of its results follows from: without what `settled` puts or takes away."""
    if func is not _LAYER:
        return args
    return tuple(None if place in (_PIECE, _DROPOUT_STATE) else arg for place, arg in enumerate(args))


def settled(func: Any, args: tuple[Any, ...], piece: torch.Tensor | None) -> tuple[Any, ...]:
    """The arguments of a layer's operator as it is recorded: with `piece` where it was given none, and without what it does
    not use: the library's own state for dropout, which it is handed even if nothing is dropped."""
    if func is not _LAYER:
        return args
    given = list(args)
    if given[_PIECE] is None:
        given[_PIECE] = piece
    if not given[_DROPOUT] or not given[_IS_TRAINED]:
        given[_DROPOUT_STATE] = None
    return tuple(given)
