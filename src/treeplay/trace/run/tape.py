"""What a trace writes: the graph, beside it the fake of each tensor and the handle that Python holds, and what it met."""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from torch import Tensor  # by name: modules are watched while it is asked for

from treeplay.errors import Refusal
from treeplay.observe.lines import is_user_file, user_location
from treeplay.torch_seam.autograd import shares_version
from treeplay.torch_seam.fakes import FakeTensor, FakeTensorMode, fake_over, memory_like
from treeplay.torch_seam.layers import is_parametrized_cache
from treeplay.torch_seam.modes import DisableTorchFunctionSubclass
from treeplay.torch_seam.operators import HigherOrderOperator
from treeplay.torch_seam.tensors import is_same_memory, storage_of, unusual
from treeplay.trace.log import LoggedCall
from treeplay.trace.numbers.scalars import Scalar
from treeplay.trace.run.apart import why_not_taken_apart
from treeplay.trace.run.checkpointed import Checkpointed, Noted
from treeplay.values.location import Location
from treeplay.values.refusal import Reason
from treeplay.values.spec import TensorSpec

MOST_NUMBERS = 64  # of a constant that a log shows, or that is made of numbers which vary
KEEP_ON_DEVICE = "return the tensor and read it after the call, or keep the computation in tensors (torch.where)"
_INSTEAD = {"_nested_tensor_from_mask_left_aligned": "make the nn.TransformerEncoder with enable_nested_tensor=False"}


@dataclass(eq=False, slots=True)
class TracedValue:
    """A tensor of the trace: the fake that was computed, the handle Python holds, and its node in the graph."""

    fake: torch.Tensor
    handle: torch.Tensor
    node: torch.fx.Node
    is_input: bool


@dataclass(eq=False, slots=True)
class InputSeen:
    """A real tensor that the program used: an argument, state, or a constant it made from Python numbers."""

    tensor: torch.Tensor
    value: TracedValue
    is_constant: bool = False
    begins: int | None = None  # where in its memory, if the program said where in that memory something else begins


class TraceTape:
    """Owned by the tracer. Fakes are alive until `forget`; what else was written stays."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.inputs: list[InputSeen] = []
        self.log: list[LoggedCall] = []
        self.host_reads: list[tuple[Any, Any]] = []  # operators that read constants on the host, and what they gave
        self.mutated: set[int] = set()  # fake storages that an operator wrote to
        self.told: dict[int, torch.Tensor] = {}  # what was written and has told autograd, in memory that an input has
        self.generators: dict[int, torch.Generator] = {}  # by identity, those that operators drew from
        self.checkpointed = Checkpointed()
        # The first draw that gave what an earlier one had given: a run elsewhere draws anew.
        self.repeated: Noted | None = None
        self.refusal: Reason | None = None
        self.refusals: dict[Reason, None] = {}  # all of them, where the trace goes on behind the first
        self.is_too_early = False  # the refusal is of this call, not of later ones
        self.was_cached: list[Any] = []  # functions that have kept a tensor of the trace, and have forgotten it since
        self.uses_backward = False
        self.fills_gradients = False  # by a backward that adds to `.grad`
        self.home: Location | None = None  # of the program as a whole, once it has run
        self.fake_mode = FakeTensorMode()
        self.values: dict[int, TracedValue] = {}  # by the identity of the handle
        self.births: dict[int, torch.fx.Node] = {}  # fake storage -> the node that made it
        self._fakes: list[weakref.ref[torch.Tensor]] = []
        self._storages: list[torch.UntypedStorage] = []
        self._bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []
        self._last_input: torch.fx.Node | None = None

    def refuse(
        self, op: str, why: str, advice: str, where: Location | None = None, *, may_pass: bool = False
    ) -> Refusal:
        """Note the first refusal, so that a program which swallows exceptions is refused all the same."""
        where = where or self.home or user_location()
        is_in_library = where is not None and where.called_from is None and not is_user_file(where.file)
        if is_in_library and where is not None and self.home is not None and is_user_file(self.home.file):
            where = replace(where, called_from=self.home)  # the run is over: no line of the program's is running
        reason = Reason(op=op, why=why, advice=advice, where=where, may_pass=may_pass)
        if self.refusal is None:
            self.refusal = reason
        self.refusals[reason] = None
        return Refusal(reason)

    def keep(self, tensor: torch.Tensor, value: TracedValue) -> TracedValue:
        """Let `tensor` stand for a value as long as the trace lasts."""
        self._kept.append(tensor)
        self.values[id(tensor)] = value
        return value

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What is written in the block is not the program's, but for refusals and the inputs that were not known."""
        log, nodes = len(self.log), {*self.graph.nodes}
        written = {*self.mutated}, {**self.told}, {**self.generators}
        flags = self.uses_backward, self.fills_gradients
        try:
            yield
        finally:
            del self.log[log:]
            for node in reversed(self.graph.nodes):
                if node not in nodes and node.op != "placeholder":
                    self.graph.erase_node(node)
            self.mutated, self.told, self.generators = written
            self.uses_backward, self.fills_gradients = flags

    # --- inputs ---------------------------------------------------------------------------------------------

    def add_input(self, tensor: torch.Tensor, *, is_constant: bool = False) -> TracedValue:
        """The value of a real tensor, made on first use."""
        known = self.values.get(id(tensor))
        if known is not None:
            return known
        node = self.placeholder(f"in{len(self.inputs)}")
        value = self.keep(tensor, TracedValue(self._twin(tensor), tensor, node, is_input=True))
        self.describe(node, value.fake)
        self.inputs.append(InputSeen(tensor, value, is_constant))
        self.births.setdefault(storage_of(value.fake), node)
        return value

    def tells_of(self, seen: InputSeen) -> bool:
        """Whether autograd was told of a write to an input: by the counter of versions that it has, as `x.data` has another."""
        storage, tensor = storage_of(seen.value.fake), seen.tensor
        told = [handle for handle in self.told.values() if storage_of(self.values[id(handle)].fake) == storage]
        return any(handle is tensor or shares_version(handle, tensor) for handle in told)

    def placeholder(self, name: str) -> torch.fx.Node:
        """An input of the graph, behind those that it has."""
        graph = self.graph
        # Inputs are met while operators are written: each goes behind the last input, the first one to the beginning.
        with graph.inserting_after(self._last_input) if self._last_input else graph.inserting_before():
            self._last_input = graph.placeholder(name)
        return self._last_input

    def _twin(self, tensor: torch.Tensor) -> torch.Tensor:
        # Two views of one storage get twins of one storage: the graph's aliasing is the program's.
        kind = unusual(tensor)
        if kind is not None:
            raise self.refuse(
                "tensor", f"is not plain memory with a shape and strides ({kind})", "convert it outside of the program"
            )
        key = (storage_of(tensor), tensor.dtype)
        # A view has the kind of what it is of, also where the program has entered or left inference mode.
        with torch.inference_mode(tensor.is_inference()):
            if key not in self._bases:
                self._bases[key] = memory_like(tensor)
            return fake_over(self._bases[key], self.fake_mode, tensor)

    # --- operators ------------------------------------------------------------------------------------------

    def call(self, func: Any, args: Any, kwargs: Any = None, *, where: Location | None) -> torch.fx.Node:
        """The node of an operator that the program calls at `where`."""
        node = self.graph.call_function(func, args, kwargs)
        node.meta["where"] = where
        return node

    def number(self, scalar: Scalar) -> Any:
        """What stands for a number where an operator takes it, or where it is stored as one of a device's size."""
        if not scalar.fits:
            self.is_too_early = self.refusal is None
            why = f"is {scalar.value} in this call, which 64 bits do not hold"
            raise self.refuse("number", why, "keep it in a float, or in the range of a tensor's integers")
        return scalar.node

    def add(self, out: Any, node: torch.fx.Node, handles: Mapping[int, torch.Tensor]) -> Any:
        """What Python gets for a result, or for the parts of one: a few operators give lists among their results.

        `handles`: what Python holds for the fakes among the operator's arguments, by their identity."""
        if isinstance(out, Tensor):
            return self.add_tensor(out, node, handles)
        if isinstance(out, (tuple, list)):
            wrapped = []
            if all(isinstance(item, Tensor) and item.layout is torch.strided for item in out):
                node.meta["results"] = [TensorSpec.of(item) for item in out]  # also of those that nobody will use
            for index, item in enumerate(out):
                if isinstance(item, (Tensor, tuple, list)):
                    part = self.call(operator.getitem, (node, index), where=node.meta["where"])
                    item = self.add(item, part, handles)
                wrapped.append(item)
            return type(out)(wrapped)
        if out is None:
            return None
        name, where = spoken_name(node.target), node.meta["where"]
        advice = _INSTEAD.get(name, KEEP_ON_DEVICE)
        raise self.refuse(name, "gives Python a value that depends on data", advice, where)

    def add_tensor(self, fake: torch.Tensor, node: torch.fx.Node, handles: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """What Python gets for one tensor."""
        handle = handles.get(id(fake))
        if fake.layout is not torch.strided:
            layout = str(fake.layout).removeprefix("torch.")
            raise self.refuse(
                spoken_name(node.target),
                f"makes a tensor of layout {layout}, and a recording has plain memory with a shape and strides",
                "use the form for plain tensors (an embedding without sparse=True), or keep this part outside",
                node.meta["where"],
            )
        self.describe(node, fake)
        if handle is not None:  # written in place: Python gets back the very tensor it passed
            return handle
        self.births.setdefault(storage_of(fake), node)
        self.values[id(fake)] = TracedValue(fake, fake, node, is_input=False)
        self._fakes.append(weakref.ref(fake))  # `leaked` asks who else holds it
        return fake

    def describe(self, node: torch.fx.Node, fake: torch.Tensor) -> None:
        """Note how the tensor of a node lies."""
        node.meta["spec"] = TensorSpec.of(fake)
        self._storages.append(fake.untyped_storage())  # `set_` would free it, and its identity be that of another
        node.meta["storage"] = storage_of(fake)
        node.meta["offset"] = fake.storage_offset()

    # --- the end --------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop every fake and handle; afterwards only what the user kept is still alive."""
        self.values.clear()
        self.inputs.clear()
        self.told.clear()
        self._bases.clear()
        self._kept.clear()
        self._storages.clear()

    def is_own(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of the trace's, without data."""
        return isinstance(tensor, FakeTensor) and tensor.fake_mode is self.fake_mode

    def leaked(self) -> list[torch.Tensor]:
        """The fakes that outlived the trace: the program put them somewhere that the survey did not see."""
        return [fake for ref in self._fakes if (fake := ref()) is not None]


_SETS = {
    torch.ops.aten.set_.default,
    torch.ops.aten.set_.source_Tensor,
    torch.ops.aten.set_.source_Tensor_storage_offset,
}


def why_not_followed(func: Any) -> tuple[str, str] | None:
    """Why no trace follows an operator, and what to do instead."""
    if func is torch.ops.aten._make_dual.default:
        return "starts forward-mode derivatives", "use reverse mode: torch.func.vjp or jacrev"
    # Zeros that lie in memory as another tensor does, which in a replay lies elsewhere.
    if func is torch.ops.aten._new_zeros_with_same_feature_meta.default:
        why = "gives a view a tangent that its base lacks"
        return why, "write out of place (torch.cat, torch.where), or give the base a tangent"
    if func in _SETS:
        return "gives a tensor other memory", "write into the tensor, or use the other tensor itself"
    if isinstance(func, HigherOrderOperator):
        why = "takes functions, which a trace does not follow"
        return why, 'use torch.compile(program, backend="treeplay"), which takes such operators'
    return why_not_taken_apart(func)


def why_unknown(func: Any, tensor: torch.Tensor, arguments: Iterable[torch.Tensor]) -> tuple[str, str, str]:
    """What to say of a tensor that an operator uses, and to which no way is known: who uses it, why not, what to do instead."""
    with DisableTorchFunctionSubclass():  # a tensor's class is not asked what the tensor is
        unwrapped = [one for one in arguments if type(one) is not type(tensor) and is_same_memory(one, tensor)]
    if unwrapped:
        why = f"uses an argument of class {type(unwrapped[0]).__name__} as one of class {type(tensor).__name__}, as "
        why += "`as_subclass` gives it: no operator tells that it is the argument"
        return spoken_name(func), why, "pass it as a plain tensor"
    if is_parametrized_cache(tensor):
        why = "was entered around the call: torch computes parameters once and keeps them, so a change could not be noticed"
        return "parametrize.cached", why, "enter it inside of the program"
    return (
        spoken_name(func),
        f"uses a tensor of shape {tuple(tensor.shape)} that is neither an argument nor found in the program's closure, "
        "globals or `self`, so a later change of it could not be noticed",
        "pass the tensor as an argument, or reach it through the closure, a global or an attribute of `self`",
    )


def spoken_name(func: Any) -> str:
    """An operator by the name that people know."""
    return str(getattr(func, "_overloadpacket", func)).removeprefix("aten.")


def content(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The values of a small constant, so that one which changes from call to call is seen."""
    flat = tensor.detach().flatten()[:MOST_NUMBERS]
    return tuple(flat.tolist())
