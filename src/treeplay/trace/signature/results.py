"""From the tensors a traced program returned or stored to references: fresh output, the very input, a view of either."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from treeplay.errors import Refusal
from treeplay.torch_seam.operators import OpOverload, is_made_of_others
from treeplay.torch_seam.tensors import extent_of, storage_of
from treeplay.trace.numbers.scalars import scalar_of
from treeplay.trace.run.tape import TracedValue
from treeplay.trace.run.tracer import Tracer
from treeplay.trace.signature.references import References, not_plain, not_traced, of_another_dtype
from treeplay.trace.survey.found import Survey
from treeplay.values.memory import Extent
from treeplay.values.output import Computed, SameAsInput, Static, View
from treeplay.values.signature import Ref


class _OfTheCall:
    """What a call makes and drops."""


class Results(References):
    """Collects the graph's outputs while references to them are made."""

    def __init__(self, tracer: Tracer, found: Survey) -> None:
        super().__init__(found, tracer.refuse)
        self.tracer = tracer
        self.outputs: list[torch.fx.Node] = []
        self._is_inference: bool | None = None  # what new tensors are
        self._inputs: list[torch.Tensor] = []
        self.dying: list[tuple[weakref.ref[Any], Refusal]] = []
        """Weak references to what the call alone keeps, and what to say of each if it is alive after all."""
        self._dead: dict[int, weakref.ref[Any]] = {}  # for each of these, by its `id`: one to what is gone
        self._take_in_inputs()

    def _static(self, value: Any) -> Static:
        if type(value) is not weakref.ref or id(value) in self.lasting or value.__callback__ is not None:
            return super()._static(value)
        found = value()
        # A tensor is another object in a replay, and what a result leads to may live as long as the caller wants.
        if isinstance(found, (torch.Tensor, type)) or not self.found.is_new(found) or id(found) in self.met:
            return super()._static(value)
        why = "keeps a weak reference to an object that it makes and that outlives the call"
        self.dying.append(
            (value, self.refuse("result", why, "keep the object itself, or make it outside of the program"))
        )
        return Static(self._dead.setdefault(id(value), weakref.ref(_OfTheCall())))

    def _tensor(self, tensor: torch.Tensor) -> Ref:
        value = self.tracer.tape.values.get(id(tensor))
        self.check_class(tensor)
        if value is None:
            if not self.tracer.is_known(tensor):
                raise not_traced(self.refuse)
            value = self.tracer.tape.add_input(tensor)
            self._take_in_inputs()
        if value.is_input:
            return SameAsInput(self._index(value))
        self.check_attributes(tensor)
        if value.fake.layout is not torch.strided or value.fake.is_conj() or value.fake.is_neg():
            raise not_plain(self.refuse, value.node.meta.get("where"))
        birth = self.tracer.tape.births[storage_of(value.fake)]
        extent = extent_of(value.fake)
        if not self.memory.owners(extent):
            self._check_mode(tensor, value)
        ref = self.in_memory(tensor, extent, _extent_of_node(birth, extent), self._inputs)
        if ref is None:
            raise of_another_dtype(self.refuse, value.node.meta.get("where"))
        if len(self.memory.made) > len(self.outputs):  # `in_memory` has met new memory
            self.outputs.append(birth)
        return ref

    def _detached(self, tensor: torch.Tensor, ref: View, extent: Extent, inputs: Sequence[torch.Tensor]) -> View:
        node = self.tracer.tape.values[id(tensor)].node
        made_by = node.args[0] if node.target is operator.getitem else node
        op = made_by.target if isinstance(made_by, torch.fx.Node) else None
        if isinstance(op, OpOverload) and is_made_of_others(op, tensor.device.type):
            # It came whole, under inference mode: autograd was told of no view that the operators in it make.
            return ref
        return super()._detached(tensor, ref, extent, inputs)

    def _made(self, base: torch.Tensor) -> Extent | None:
        value = self.tracer.tape.values.get(id(base))
        return extent_of(value.fake) if value is not None and not value.is_input else None

    def _number(self, number: Any) -> Ref:
        scalar = scalar_of(number)
        if scalar is None or scalar.text is None:
            raise self.refuse(
                "result",
                "returns or stores a number that a replay could not compute",
                "return what it is computed from, and compute it after the call",
            )
        if not scalar.is_numpys:
            return Computed(scalar.text)
        self.tracer.tape.number(scalar)  # where NumPy's would wrap around
        return Computed(scalar.text, scalar.cls)

    def _take_in_inputs(self) -> None:
        for seen in self.tracer.tape.inputs[len(self._inputs) :]:
            self.memory.add_input(extent_of(seen.value.fake))
            self._inputs.append(seen.tensor)

    @property
    def is_inference(self) -> bool | None:
        """Whether new tensors are of inference mode, where that is not what the call's own mode says."""
        return None if self._is_inference is torch.is_inference_mode_enabled() else self._is_inference

    def _index(self, value: TracedValue) -> int:
        return next(i for i, seen in enumerate(self.tracer.tape.inputs) if seen.value is value)

    def _check_mode(self, tensor: torch.Tensor, value: TracedValue) -> None:
        if self._is_inference not in (None, tensor.is_inference()):
            raise self.refuse(
                "result",
                "returns or stores tensors made inside of inference mode beside others made outside of it",
                "make all of them under the same mode, or use torch.no_grad()",
                value.node.meta.get("where"),
            )
        self._is_inference = tensor.is_inference()


def _extent_of_node(birth: torch.fx.Node, found: Extent) -> Extent:
    """The extent of what a node made, in the storage in which something was found."""
    spec, offset = birth.meta["spec"], birth.meta["offset"]
    return replace(found, offset=offset * spec.dtype.itemsize, spec=spec)
