"""From the tensors a traced program returned or stored to references: fresh output, the very input, a view of either."""

from __future__ import annotations

import torch
import torch.fx

from treeplay.trace.found import Survey
from treeplay.trace.references import References
from treeplay.trace.tape import TracedValue, storage_of
from treeplay.trace.tracer import Tracer
from treeplay.values.signature import Cast, Fresh, Ref, SameAsInput, View
from treeplay.values.spec import TensorSpec


class Results(References):
    """Collects the graph's outputs while references to them are made."""

    def __init__(self, tracer: Tracer, found: Survey) -> None:
        super().__init__(found, tracer.refuse)
        self.tracer = tracer
        self.outputs: list[torch.fx.Node] = []
        self._bases: dict[torch.fx.Node, int] = {}
        self._leaves: set[int] = set()  # outputs that will require gradients
        self._is_inference: bool | None = None  # what new tensors are
        self._inputs: dict[int, list[int]] = {}
        for index, seen in enumerate(tracer.tape.inputs):
            self._inputs.setdefault(storage_of(seen.value.fake), []).append(index)

    def _tensor(self, tensor: torch.Tensor) -> Ref:
        value = self.tracer.values.get(id(tensor))
        self.check_class(tensor)
        if value is None:
            if not self.tracer.is_known(tensor):
                raise self.tracer.refuse(
                    "result", "returns or stores a tensor that no traced operator made", "make it with torch operators"
                )
            value = self.tracer.add_input(tensor)
        if value.is_input:
            return SameAsInput(self._index(value))
        if value.fake.layout is not torch.strided or value.fake.is_conj() or value.fake.is_neg():
            raise self.tracer.refuse(
                "result",
                "returns a tensor that is more than memory, shape and stride: sparse, conjugated or negated when read",
                "return it as a plain tensor (.to_dense(), .resolve_conj(), .resolve_neg())",
                value.node.meta.get("where"),
            )
        return self._view_of_input(tensor, value) or self._fresh(tensor, value)

    @property
    def is_inference(self) -> bool | None:
        """Whether new tensors are of inference mode, where that is not what the call's own mode says."""
        return None if self._is_inference is torch.is_inference_mode_enabled() else self._is_inference

    def _index(self, value: TracedValue) -> int:
        return next(i for i, seen in enumerate(self.tracer.tape.inputs) if seen.value is value)

    def _view_of_input(self, tensor: torch.Tensor, value: TracedValue) -> View | None:
        owners = self._inputs.get(storage_of(value.fake))
        if owners is None:
            return None
        # Of several inputs in one storage, the one whose elements the view is made of.
        index = next((i for i in owners if _contains(self.tracer.tape.inputs[i].value.fake, value.fake)), owners[0])
        seen = self.tracer.tape.inputs[index]
        base = seen.value
        is_apart = not tensor.requires_grad or tensor.grad_fn is None
        is_detached = seen.tensor.requires_grad and torch.is_grad_enabled() and is_apart
        return self._view(
            SameAsInput(index), value, base.node, is_detached=is_detached, requires_grad=_is_new_leaf(tensor)
        )

    def _fresh(self, tensor: torch.Tensor, value: TracedValue) -> Ref:
        if self._is_inference not in (None, tensor.is_inference()):
            raise self.tracer.refuse(
                "result",
                "returns or stores tensors made inside of inference mode beside others made outside of it",
                "make all of them under the same mode, or use torch.no_grad()",
                value.node.meta.get("where"),
            )
        self._is_inference = tensor.is_inference()
        birth = self.tracer.births[storage_of(value.fake)]
        spec, offset = birth.meta["spec"], birth.meta["offset"]
        is_whole = (spec.shape, spec.stride, spec.dtype, offset) == (
            tuple(value.fake.shape),
            value.fake.stride(),
            value.fake.dtype,
            value.fake.storage_offset(),
        )
        is_first = birth not in self._bases
        index = self._bases.setdefault(birth, len(self.outputs))
        if is_first:
            self.outputs.append(birth)
        requires_grad = _is_new_leaf(tensor)
        if is_whole and is_first:
            self._leaves |= {index} if requires_grad else set()
            return Fresh(index, requires_grad)
        is_detached = index in self._leaves
        return self._view(Fresh(index), value, birth, is_detached=is_detached, requires_grad=requires_grad)

    def _view(
        self,
        of: Fresh | SameAsInput,
        value: TracedValue,
        base: torch.fx.Node,
        *,
        is_detached: bool,
        requires_grad: bool,
    ) -> View:
        fake, layout = value.fake, (tuple(value.fake.shape), tuple(value.fake.stride()))
        if fake.dtype == base.meta["spec"].dtype:
            offset = fake.storage_offset() - base.meta["offset"]
            return View(of, *layout, offset, is_detached, requires_grad)
        found = cast_of(fake, base.meta["spec"], base.meta["offset"])
        if found is None:
            raise self.tracer.refuse(
                "result",
                "returns a view of another dtype, of memory that lies outside of the tensor it was taken from",
                "return a copy of it (.clone())",
                value.node.meta.get("where"),
            )
        cast, offset = found
        return View(of, *layout, offset, is_detached, requires_grad, cast)


def _contains(base: torch.Tensor, view: torch.Tensor) -> bool:
    (start, end), (first, last) = _bytes_of(base), _bytes_of(view)
    return start <= first and last <= end


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Where in its storage a tensor begins and ends, in bytes."""
    start = int(tensor.storage_offset()) * tensor.dtype.itemsize
    return start, start + TensorSpec.of(tensor).nbytes


def cast_of(view: torch.Tensor, base: TensorSpec, base_offset: int) -> tuple[Cast, int] | None:
    """How a view reads the memory of a tensor of another dtype, and where in what is read so it begins. None if it reads
    outside of that tensor."""
    first, last = (place - base_offset * base.dtype.itemsize for place in _bytes_of(view))
    # What is read anew has to begin and end where elements of both dtypes do.
    unit = max(base.dtype.itemsize, view.dtype.itemsize)
    start, end = first // unit * unit, -(-last // unit) * unit
    if start < 0 or end > base.nbytes:
        return None
    size = base.dtype.itemsize
    is_complex = base.dtype.is_complex != view.dtype.is_complex and base.dtype.to_real() == view.dtype.to_real()
    cast = Cast(view.dtype, start // size, (end - start) // size, is_complex)
    return cast, (first - start) // view.dtype.itemsize


def _is_new_leaf(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and tensor.grad_fn is None
