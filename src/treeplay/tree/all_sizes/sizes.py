"""Keys that differ in sizes of their arguments alone, and which sizes have been seen to change.

Key ─ without_sizes ▶ SizelessKey: the entry of what is recorded for all of these sizes

A size counts as changing once a call had another one. One that is 0 or 1 is known, as it is to torch: operators treat it
otherwise. So a call with such a size, where it changes, is none for which all sizes are compiled.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch

from treeplay.trace.call import Call
from treeplay.tree.all_sizes.trial import SizesTrial
from treeplay.tree.keys.key import Key, arguments_text, key_by_class
from treeplay.tree.table import Entry, Recording
from treeplay.values.spec import ANY_SIZE, TensorSpec
from treeplay.values.structure import paths
from treeplay.wrap.ambience import Ambience

_MOST = 64
ShapesByLeaf = dict[int, tuple[int, ...]]


class SizelessKey(NamedTuple):
    """What the keys of calls have in common that differ in sizes and strides of their arguments alone."""

    without_sizes: Hashable
    ambience: Ambience


class ChangingSizes:
    """Of the calls of one program: which sizes change, by the leaf of the arguments."""

    def __init__(self) -> None:
        self._first: OrderedDict[SizelessKey, ShapesByLeaf] = OrderedDict()
        self._changing: dict[SizelessKey, dict[int, frozenset[int]]] = {}
        self.trials: WeakKeyDictionary[Recording, SizesTrial] = WeakKeyDictionary()
        self.is_off = False  # whether this torch cannot trace with symbols
        self.is_tried = False  # whether a recording for all sizes was tried

    def came(self, key: Key) -> tuple[SizelessKey, Mapping[int, frozenset[int]]] | None:
        """What is common to this key and those of other sizes, and which sizes change; None for a call without tensors, or with
        an object that counts as itself."""
        shapes = {at: leaf.shape for at, leaf in enumerate(_leaves(key)) if type(leaf) is TensorSpec}
        if not shapes or key_by_class(key) is not None:
            return None
        sizeless = _sizeless(key)
        first = self._first.setdefault(sizeless, shapes)
        self._first.move_to_end(sizeless)
        changing = self._changing.setdefault(sizeless, {})
        for at, shape in shapes.items():
            differing = {k for k, (one, other) in enumerate(zip(shape, first[at], strict=True)) if one != other}
            if differing:
                changing[at] = changing.get(at, frozenset()) | differing
        if len(self._first) > _MOST:
            del self._changing[self._first.popitem(last=False)[0]]
        return sizeless, changing

    def recorded_alone(self, of: Any, entries: Iterable[tuple[Any, Entry]]) -> Iterator[tuple[int, ...]]:
        """The sizes, as `sizes_in` gives them, of calls that have a recording of their own."""
        changing = self._changing.get(of, {})
        return (sizes_in(_leaves(key), changing) for key, entry in those_of(of, entries) if entry.recordings)


def those_of(sizeless: Any, entries: Iterable[tuple[Any, Entry]]) -> Iterator[tuple[Key, Entry]]:
    """The entries of known sizes among some."""
    return ((key, entry) for key, entry in entries if isinstance(key, Key) and _sizeless(key) == sizeless)


def _leaves(key: Key) -> tuple[Any, ...]:
    return cast(tuple[Hashable, tuple[Any, ...]], key.arguments)[1]


def _sizeless(key: Key) -> SizelessKey:
    structure, leaves = cast(tuple[Hashable, tuple[Hashable, ...]], key.arguments)
    return SizelessKey((structure, tuple(map(_without_sizes, leaves))), key.ambience)


def sizes_in(leaves: Sequence[Any], changing: Mapping[int, frozenset[int]]) -> tuple[int, ...]:
    """The sizes that change, of tensors or their specs, in the order of the leaves."""
    return tuple(leaves[at].shape[k] for at in sorted(changing) for k in sorted(changing[at]))


def _without_sizes(leaf: Hashable) -> Hashable:
    if type(leaf) is not TensorSpec:
        return leaf
    return TensorSpec, leaf.dtype, leaf.device, leaf.requires_grad, len(leaf.shape)


def may_be_symbols(call: Call, changing: Mapping[int, frozenset[int]]) -> bool:
    """Whether each size of a call that changes can be a symbol."""
    return all(call.leaves[at].size(k) > 1 for at, dimensions in changing.items() for k in dimensions)


def on_the_cpu(call: Call) -> bool:
    """Whether all tensors among the arguments are there."""
    return all(leaf.device.type == "cpu" for leaf in call.leaves if isinstance(leaf, torch.Tensor))


def described(call: Call, changing: Mapping[int, frozenset[int]]) -> dict[str, str]:
    """The call's arguments by name, as text, with `any` for sizes that change."""
    told: dict[str, Any] = arguments_text(call)
    for name, at in zip(told, range(len(paths(call.structure))), strict=True):
        if at in changing:
            spec = TensorSpec.of(call.leaves[at])
            shape = tuple(ANY_SIZE if k in changing[at] else size for k, size in enumerate(spec.shape))
            told[name] = str(TensorSpec(shape, spec.stride, spec.dtype, spec.device, spec.requires_grad))
    return told
