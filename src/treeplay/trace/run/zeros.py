"""Zeros without memory, which forward-mode derivatives take for tangents that are not there.

torch computes nothing with them: a product with them is such zeros again, beside an infinity too, and a sum is its other part.
It decides so above a trace, and asks tensors of the device "meta" for the shape. The fakes of such zeros know what they are, so
a trace goes the way that eager goes. What is asked for a shape is no part of the graph, where the zeros are plain zeros.

    x * zeros ── to("meta"), prims.mul ─▶ the shape ─▶ zeros of that shape        x + zeros ─▶ a copy of x

What autograd notes of a product with them is another matter: its backward brings zeros to the other factor, which a recording
of the plain zeros does not (`is_cut_off`).

A view of such a fake is made by torch alone and lies on the device "meta", as the fake does inside: it becomes zeros of the
trace where an operator takes it, and what torch makes on that device for it is made on the device of the zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor  # by name: modules are watched while it is asked for

from treeplay.observe.lines import running_call
from treeplay.torch_seam.autograd import history, node_of
from treeplay.torch_seam.fakes import ask_rules_anew
from treeplay.torch_seam.schemas import MAKES_ZEROS, aten, leaves_of
from treeplay.torch_seam.tensors import is_known_zero
from treeplay.trace.run.tape import TracedValue, TraceTape

# What torch asks of a tensor and a tangent that it puts beside it.
_ASKED_OF_TANGENTS = frozenset({aten.is_same_size.default, aten._has_same_storage_numel.default})
_TO_META = aten.to.dtype_layout
_MADE_FOR_A_VIEW = (aten.zeros.default, MAKES_ZEROS, aten._to_copy.default)
_BY_USERS = frozenset({"zeros", "zeros_like", "new_zeros", "to", "to_empty", "_efficientzerotensor"})


class KnownZeros:
    """Owned by the tracer. `is_state` says whether a tensor is one that the trace may take in."""

    def __init__(self, tape: TraceTape, is_state: Callable[[Tensor], bool]) -> None:
        self._tape = tape
        self._is_state = is_state
        self._device: torch.device | None = None

    @property
    def were_met(self) -> bool:
        """Whether the program has made any."""
        return self._device is not None

    def asked(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What torch gets that asks for the shape of a result with zeros, or compares a tensor with its tangent; NotImplemented
        where it asks for neither."""
        if func in _ASKED_OF_TANGENTS:
            return _compared(func, *args)
        if func is MAKES_ZEROS and self._device is None:
            self._device = kwargs.get("device") or torch.get_default_device()
            ask_rules_anew(self._tape.fake_mode)
        if self._device is None:
            return NotImplemented
        if func is _TO_META and _is_meta(kwargs.get("device")):
            return _shape_of(args[0], kwargs.get("dtype"))
        tensors = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Tensor)]
        if tensors and all(self._is_torchs(one) and not is_known_zero(one) for one in tensors):
            return func(*args, **kwargs)
        return NotImplemented

    def on_their_device(self, func: Any, kwargs: Any) -> Any:
        """The keywords of an operator by which torch makes something for a view of zeros: on the device of the zeros."""
        if self._device is None or func not in _MADE_FOR_A_VIEW or not _is_meta(kwargs.get("device")):
            return kwargs
        return kwargs if running_call().name in _BY_USERS else {**kwargs, "device": self._device}

    def are_in(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether an operator makes such zeros, or is given some: its result may be some then, and no other tensor tells."""
        if self._device is None:
            return False
        zeros = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Tensor) and is_known_zero(leaf)]
        for view in zeros:
            if self._is_torchs(view):
                self._take_in(view)
        return bool(zeros) or func is MAKES_ZEROS

    def _is_torchs(self, tensor: Tensor) -> bool:
        """Whether a tensor without data was made by torch on the way, and is neither the trace's nor the program's."""
        is_meta = type(tensor) is Tensor and tensor.device.type == "meta"
        return is_meta and id(tensor) not in self._tape.values and not self._is_state(tensor)

    def _take_in(self, view: Tensor) -> None:
        size, options = list(view.size()), {"dtype": view.dtype, "device": self._device}
        with self._tape.fake_mode:
            fake: Tensor = MAKES_ZEROS(size, **options)
        node = self._tape.call(aten.zeros.default, (size,), options, where=None)
        self._tape.add_tensor(fake, node, {})
        self._tape.keep(view, TracedValue(fake, view, node, is_input=False))


def is_cut_off(tape: TraceTape, result: Tensor) -> bool:
    """Whether a backward of `result` brings something to an input from which nothing of it was computed: zeros, since
    known ones were multiplied on the way."""
    behind = {*history([result.grad_fn])}
    leaves = {id(node.variable) for node in behind if hasattr(node, "variable")}
    needed = _computed_from(tape.values[id(result)].node)
    return any(
        seen.value.node not in needed
        for seen in tape.inputs
        if id(seen.tensor) in leaves or node_of(seen.tensor) in behind
    )


def _computed_from(node: torch.fx.Node) -> set[torch.fx.Node]:
    """What a node's value is computed from, by steps that derivatives may go through."""
    found, waiting = {node}, [node]
    while waiting:
        for source in waiting.pop().all_input_nodes:
            spec = source.meta.get("spec")
            if source not in found and (spec is None or spec.dtype.is_floating_point or spec.dtype.is_complex):
                found.add(source)
                waiting.append(source)
    return found


def _is_meta(device: Any) -> bool:
    return getattr(device, "type", None) == "meta"


def _shape_of(one: Any, dtype: torch.dtype | None) -> Tensor:
    if not isinstance(one, Tensor):  # a number
        return torch.tensor(one, dtype=dtype or (torch.float64 if isinstance(one, float) else None), device="meta")
    return torch.empty_strided(one.size(), one.stride(), dtype=dtype or one.dtype, device="meta")


def _compared(func: Any, one: Tensor, other: Tensor) -> bool:
    """The answer to a question of `_ASKED_OF_TANGENTS`. How large a memory is decides nothing but where a tangent lies."""
    return one.size() == other.size() if func is aten.is_same_size.default else _elements(one) == _elements(other)


def _elements(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.element_size()
