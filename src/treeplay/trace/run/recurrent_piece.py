"""The piece of memory in which a recurrent layer on a GPU has its weights, as a trace puts it together (`recurrent`).

Before the layer, `called_with` its weights; then the library makes an empty tensor one over their storage, which becomes
`put_together` here; and the layer's operator, and its backward's, are recorded with that `piece`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.modes import DisableTorchFunction, TorchDispatchMode
from treeplay.trace.run.recurrent import in_one_piece
from treeplay.trace.run.tape import TracedValue, TraceTape
from treeplay.values.location import Location

aten = torch.ops.aten


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
