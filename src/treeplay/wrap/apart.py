"""Do a call's tensors share memory as they did when the program was recorded?

A compiled graph takes each input to be apart from what it writes. Most arguments own their memory, which one native
question settles; only a slice of something larger, or memory that is not torch's, is compared with the written state. State
that lies where it lay in the call before is apart as it was then.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch

from treeplay.torch_seam.tensors import is_alone, owns_memory
from treeplay.values.output import View, inputs_used
from treeplay.values.overlap import Interval, interval, overlapping_intervals
from treeplay.values.signature import Argument, Signature, State

SharedPair = tuple[int, int, int]
"""Two inputs, and how many bytes after the first the second begins."""

_data_ptr = torch.Tensor.data_ptr


class SharingCheck:
    """Callable (arguments, inputs) -> bool: whether the pairs that share written memory are those recorded, and lie as far
    apart: which elements two slices have in common decides what may run before what, and where in one the other begins.

    `settling`: inputs for which it matters with what they share memory, since they are written, or results are views of them.
    `state` are indices of inputs that are no arguments, at least two, where some of them are written: `t.data = s.data` gives
    two of them one memory. `extents`: over how many bytes each input reaches, where that is the same in each call. Once
    arguments are known to be apart, they are so until one has another storage, or one of the inputs `watched` lies elsewhere:
    what is written, if nothing else is said."""

    def __init__(
        self,
        settling: Sequence[int],
        shared: Sequence[SharedPair],
        state: Sequence[int] = (),
        extents: Sequence[int] | None = None,
        *,
        watched: Sequence[int] | None = None,
    ) -> None:
        self._settling = tuple(settling)
        self._watched = self._settling if watched is None else tuple(watched)
        self._shared = list(shared)
        self._extents = extents
        self._known: Any = None
        self._state_of = itemgetter(*state) if state else None
        self._addresses: list[int] | None = None

    @classmethod
    def of(cls, signature: Signature, inputs: Sequence[torch.Tensor], *, is_compiled: bool) -> SharingCheck | None:
        """The question to ask on each call, or None where the answer does not matter."""
        # Of which input a view among the results is, the memory told that they shared.
        views = (ref.of for ref in signature.values if isinstance(ref, View))
        settling = [*signature.mutated, *inputs_used(views)]
        spans = [*map(interval, inputs)]
        if shared := _shared(spans, settling):
            # A slice lies elsewhere in each call, so this is asked in each call.
            return cls(settling, shared, extents=[end - start for start, end in spans])
        given = any(isinstance(item.source, Argument) for item in signature.inputs)
        state = [index for index, item in enumerate(signature.inputs) if isinstance(item.source, State)]
        if len(state) < 2 or set(state).isdisjoint(signature.mutated):
            state = []
        return cls(signature.mutated, (), state) if is_compiled and signature.mutated and (given or state) else None

    @classmethod
    def of_arguments(cls, signature: Signature, inputs: Sequence[torch.Tensor]) -> SharingCheck | None:
        """The question where nothing is known of what is written: whether arguments share memory, with each other or with
        state, as they did. State that shares memory with state stays where it is. None without arguments."""
        arguments = [at for at, item in enumerate(signature.inputs) if isinstance(item.source, Argument)]
        if not arguments:
            return None
        state = [at for at in range(len(inputs)) if at not in set(arguments)]
        return cls(arguments, _shared([*map(interval, inputs)], arguments), watched=state)

    def __call__(self, arguments: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> bool:
        if self._state_of is not None:
            addresses = [*map(_data_ptr, self._state_of(inputs))]
            if addresses != self._addresses:
                if self._found(inputs) != self._shared:
                    return False
                self._addresses = addresses
        if not self._shared and all(map(is_alone, arguments)):
            return True
        storages = [tensor.untyped_storage()._cdata for tensor in arguments]
        now = (storages, [_data_ptr(inputs[index]) for index in self._watched])
        if now == self._known:
            return True
        if self._found(inputs) != self._shared:
            return False
        given = set(map(id, arguments))
        if _stay_apart(arguments, storages, [tensor for tensor in inputs if id(tensor) not in given]):
            self._known = now
        return True

    def _found(self, inputs: Sequence[torch.Tensor]) -> list[SharedPair]:
        if self._extents is None:
            return _shared([*map(interval, inputs)], self._settling)
        ways = zip(map(_data_ptr, inputs), self._extents, strict=True)
        return _shared([(start, start + extent) for start, extent in ways], self._settling)


def _shared(spans: Sequence[Interval], settling: Sequence[int]) -> list[SharedPair]:
    """The pairs that share bytes of which one is among these, with the distance in bytes from the first to the second."""
    return [(one, other, spans[other][0] - spans[one][0]) for one, other in overlapping_intervals(spans, settling)]


def _stay_apart(arguments: Sequence[torch.Tensor], storages: Sequence[int], others: Sequence[torch.Tensor]) -> bool:
    """Whether each storage holds one argument and nothing else: then they are apart, whatever slice of them comes next."""
    elsewhere = {tensor.untyped_storage()._cdata for tensor in others}
    return len(set(storages)) == len(storages) and elsewhere.isdisjoint(storages) and all(map(owns_memory, arguments))
