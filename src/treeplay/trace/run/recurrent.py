"""Weights of recurrent layers on a GPU, for a trace: their library looks for them in one piece of memory.

    torch.lstm(x, h, weights, ...)
      ├─ empty(0).set_(storage of the first weight)   a tensor over all weights, if they lie in one piece
      └─ _cudnn_rnn(x, weights, that tensor, ...)     without it if its addresses are not those of the weights

A tensor over whatever lies beside the first weight could not be checked from call to call, and a trace has no addresses. So
it puts the weights together itself, each where it lies in its storage, and hands the layer that: one copy of the weights
for each call of it. Before the layer, a `RecurrentPiece` is `called_with` its weights; then the library makes an empty tensor
one over their storage, which is `put_together` here; and the layer's operator, and its backward's, are recorded with that
`piece`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.modes import DisableTorchFunction, TorchDispatchMode
from treeplay.trace.run.tape import TracedValue, TraceTape
from treeplay.values.location import Location

aten = torch.ops.aten
TAKES_ONE_PIECE = aten.set_.source_Storage
_OPERATORS = (aten._cudnn_rnn.default, aten._cudnn_rnn_backward.default)
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
    """The arguments of an operator that the layout of its results follows from: without what `as_recorded` changes."""
    places = _places_of(func)
    if places is None:
        return args
    return tuple(
        None if place in (places["weight_buf"], places["dropout_state"]) else arg for place, arg in enumerate(args)
    )


def as_recorded(func: Any, args: tuple[Any, ...], piece: torch.Tensor | None) -> tuple[Any, ...]:
    """The arguments of a layer's operator, or its backward's, as it is recorded: with `piece` where it was given none, and
    without what it does not use: the library's own state for dropout, which it is handed even if nothing is dropped."""
    places = _places_of(func)
    if places is None:
        return args
    given = list(args)
    if given[places["weight_buf"]] is None:
        given[places["weight_buf"]] = piece
    if not given[places["dropout"]] or not given[places["train"]]:
        given[places["dropout_state"]] = None
    return tuple(given)


@functools.cache
def _places_of(func: Any) -> dict[str, int] | None:
    """Where the arguments of a layer's operator are, by name; None for any other operator."""
    if func not in _OPERATORS:
        return None
    return {argument.name: place for place, argument in enumerate(func._schema.arguments)}


class RecurrentPiece:
    """The weights of the layer that was called last, and a tensor over them."""

    def __init__(self, tape: TraceTape) -> None:
        self._tape = tape
        self._weights: Sequence[torch.Tensor] = ()
        self.piece: torch.Tensor | None = None

    def called_with(self, weights: Sequence[torch.Tensor]) -> None:
        """Note that a layer with these weights comes next."""
        self._weights, self.piece = weights, None

    def put_together(
        self, tracer: TorchDispatchMode, target: torch.Tensor, storage: torch.UntypedStorage, where: Location | None
    ) -> torch.Tensor:
        """Make an empty tensor of the trace one over all recurrent weights in `storage`, by operators that `tracer` records."""
        with DisableTorchFunction():
            return self._over(tracer, target, storage, where)

    def _over(
        self, tracer: TorchDispatchMode, target: torch.Tensor, storage: torch.UntypedStorage, where: Location | None
    ) -> torch.Tensor:
        tape, pieces = self._tape, list(in_one_piece(self._weights, storage))
        if not pieces or not isinstance(target, FakeTensor) or target.numel():
            raise tape.refuse(
                "set_", "gives a tensor other memory", "write into the tensor, or use the other tensor itself", where
            )
        told = len(tape.log)
        with tracer, torch.no_grad():  # entered anew: inside of `__torch_dispatch__` the mode is off
            whole = torch.zeros(storage.nbytes() // target.itemsize, dtype=target.dtype, device=target.device)
            for weight, place in pieces:
                whole.as_strided(*place).copy_(weight.detach())
        # Eager calls none of these.
        del tape.log[told:]
        with tape.fake_mode:
            aten.set_.source_Tensor(target, whole)
        value = tape.keep(whole, tape.values[id(whole)])
        tape.values[id(target)] = TracedValue(target, target, value.node, is_input=False)
        self.piece = target
        return target

    def forget(self) -> None:
        """Hold no tensor."""
        self.called_with(())
