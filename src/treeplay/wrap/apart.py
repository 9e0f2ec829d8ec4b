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
from treeplay.values.overlap import interval, overlapping, overlapping_intervals
from treeplay.values.signature import Argument, Signature, State

_data_ptr = torch.Tensor.data_ptr


class SharingCheck:
    """Callable (arguments, inputs) -> bool: whether the pairs that share written memory are those recorded.

    `state` are indices of inputs that are no arguments, at least two, where some of them are written: `t.data = s.data` gives
    two of them one memory. `extents`: over how many bytes each input reaches, where that is the same in each call."""

    def __init__(
        self,
        written: Sequence[int],
        shared: Sequence[tuple[int, int]],
        state: Sequence[int] = (),
        extents: Sequence[int] | None = None,
    ) -> None:
        self._written = tuple(written)
        self._shared = list(shared)
        self._extents = extents
        self._known: Any = None
        self._state_of = itemgetter(*state) if state else None
        self._addresses: list[int] | None = None

    @classmethod
    def of(cls, signature: Signature, inputs: Sequence[torch.Tensor], *, is_compiled: bool) -> SharingCheck | None:
        """The question to ask on each call, or None where the answer does not matter."""
        if overlapping(inputs, range(len(inputs))):
            # A view among the results may be of either: of which one it is, the memory told that they shared.
            # A slice lies elsewhere in each call, so this is asked in each call.
            shared, spans = overlapping(inputs, range(len(inputs))), map(interval, inputs)
            return cls(range(len(inputs)), shared, extents=[end - start for start, end in spans])
        given = any(isinstance(item.source, Argument) for item in signature.inputs)
        state = [index for index, item in enumerate(signature.inputs) if isinstance(item.source, State)]
        if len(state) < 2 or set(state).isdisjoint(signature.mutated):
            state = []
        return cls(signature.mutated, (), state) if is_compiled and signature.mutated and (given or state) else None

    def __call__(self, arguments: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> bool:
        if self._state_of is not None:
            addresses = [*map(_data_ptr, self._state_of(inputs))]
            if addresses != self._addresses:
                if self._pairs(inputs) != self._shared:
                    return False
                self._addresses = addresses
        if not self._shared and all(map(is_alone, arguments)):
            return True
        storages = [tensor.untyped_storage()._cdata for tensor in arguments]
        now = (storages, [_data_ptr(inputs[index]) for index in self._written])
        if now == self._known:
            return True
        if self._pairs(inputs) != self._shared:
            return False
        given = set(map(id, arguments))
        if _stay_apart(arguments, storages, [tensor for tensor in inputs if id(tensor) not in given]):
            self._known = now
        return True

    def _pairs(self, inputs: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
        if self._extents is None:
            return overlapping(inputs, self._written)
        starts = map(_data_ptr, inputs)
        spans = [(start, start + extent) for start, extent in zip(starts, self._extents, strict=True)]
        return overlapping_intervals(spans, self._written)


class ApartArguments:
    """The same question where nothing is known of what is written: whether arguments share memory, with each other or with
    state, as they did. State that shares memory with state stays where it is."""

    def __init__(self, arguments: Sequence[int], shared: Sequence[tuple[int, int]]) -> None:
        self._arguments = frozenset(arguments)
        self._shared = list(shared)
        self._known: Any = None

    @classmethod
    def of(cls, signature: Signature, inputs: Sequence[torch.Tensor]) -> ApartArguments | None:
        """The question to ask on each call, or None without arguments."""
        arguments = [at for at, item in enumerate(signature.inputs) if isinstance(item.source, Argument)]
        if not arguments:
            return None
        made = cls(arguments, ())
        made._shared = made._pairs(inputs)
        return made

    def __call__(self, arguments: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> bool:
        if not self._shared and all(map(is_alone, arguments)):
            return True
        storages = [tensor.untyped_storage()._cdata for tensor in arguments]
        state = [item for at, item in enumerate(inputs) if at not in self._arguments]
        now = (storages, [_data_ptr(item) for item in state])
        if now == self._known:
            return True
        if self._pairs(inputs) != self._shared:
            return False
        if _stay_apart(arguments, storages, state):
            self._known = now
        return True

    def _pairs(self, inputs: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
        pairs = overlapping(inputs, range(len(inputs)))
        return [pair for pair in pairs if not self._arguments.isdisjoint(pair)]


def _stay_apart(arguments: Sequence[torch.Tensor], storages: Sequence[int], others: Sequence[torch.Tensor]) -> bool:
    """Whether each storage holds one argument and nothing else: then they are apart, whatever slice of them comes next."""
    elsewhere = {tensor.untyped_storage()._cdata for tensor in others}
    return len(set(storages)) == len(storages) and elsewhere.isdisjoint(storages) and all(map(owns_memory, arguments))
