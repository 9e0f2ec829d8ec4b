"""Watches torch functions while a program is traced: what never reaches an operator, or reaches it too late.

`x.numpy()`, `print(x)` and `x.data = y` act on a tensor below or beside dispatch. On the tracer's handles they would read
or change the user's real memory, so each is refused here with its line.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from treeplay.errors import Refusal
from treeplay.observe.lines import user_location
from treeplay.torch_seam.autograd import changes_what_is_saved, history, is_used_up
from treeplay.torch_seam.facts import FACTS
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.modes import DisableTorchFunctionSubclass, is_of_transform
from treeplay.torch_seam.tensors import TensorBase, is_same_memory, replaced_methods
from treeplay.trace.numbers.made_of_numbers import tensor_of_numbers, to_be_stored
from treeplay.trace.run.checks import checked_by_operators
from treeplay.trace.run.facts import FactsAsked
from treeplay.trace.run.gradients import Gradients
from treeplay.trace.run.recurrent import weights_of
from treeplay.trace.run.tracer import Tracer
from treeplay.trace.training.fused import with_symbolic_numbers
from treeplay.values.location import Location

_TENSOR = torch.Tensor
_READS = {
    name: getattr(_TENSOR, name)
    for name in (
        "numpy",
        "tolist",
        "__array__",
        "data_ptr",
        "untyped_storage",
        "storage",
        "__dlpack__",
        "__dlpack_device__",
        "__reduce_ex__",
        "__deepcopy__",
        "share_memory_",
        "__index__",
        "__int__",
        "__complex__",
        "__contains__",
        "apply_",
        "map_",
        "map2_",
    )
    if hasattr(_TENSOR, name)
}
_PRINTS = {name: getattr(_TENSOR, name) for name in ("__repr__", "__format__", "__str__") if hasattr(_TENSOR, name)}
_HOOKS = {
    name: getattr(_TENSOR, name) for name in ("register_hook", "register_post_accumulate_grad_hook", "retain_grad")
}
_ATTRIBUTES: Mapping[str, Any] = vars(TensorBase)
_SETTERS = {_ATTRIBUTES[name].__set__: name for name in ("data", "requires_grad")}
_BACKWARD = (torch.autograd.backward, torch.autograd.grad, _TENSOR.backward)
_SYM_FLOAT: Any = torch.sym_float
READS_ON_THE_HOST = frozenset({*_READS.values(), *_PRINTS.values()})


class WatchFunctions(TorchFunctionMode):
    """Active beside a `Tracer`.

    Keeps the autograd nodes that a backward of the program itself consumed, and the tensors whose `.grad` it read.
    """

    def __init__(self, tracer: Tracer, gradients: Gradients) -> None:
        super().__init__()
        self.tracer = tracer
        self.gradients = gradients
        self.facts = FactsAsked(tracer)
        self._replaced = replaced_methods()
        self.replaced: tuple[str, Location | None] | None = None  # the first that was not called by its name
        self.consumed: set[Any] = set()
        self.grads_read: dict[int, torch.Tensor] = {}
        self.grads_set: set[int] = set()  # tensors, by `id`
        self.hooked: tuple[str, Location | None] | None = None  # the first hook on a tensor that the program made
        self.repacked: tuple[str, Location | None] | None = (
            None  # the first call under hooks that may change what is saved
        )

    def forget(self) -> None:
        """Drop what was kept of the traced run."""
        self.facts.forget()
        self.consumed.clear()
        self.grads_read.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _SYM_FLOAT:  # of each number of each parameter that an optimizer computes
            return func(*args)
        if func in self._replaced:
            func = self._replaced[func]
            self.replaced = self.replaced or (f"torch.Tensor.{func.__name__}", user_location())
        reads = self.tracer.reads
        was_noting = reads.pause()
        try:
            known, func = self._look(func, args, kwargs := kwargs or {})
        finally:
            if was_noting:
                reads.resume()
        return known if func is None else func(*args, **kwargs)

    def _look(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """What is to be called with these arguments; or, instead of it, the result."""
        if func in READS_ON_THE_HOST:
            self._refuse_read(func)
        elif func in (_GRAD_GET, self.gradients.getter):
            # Else `__torch_function__` of a tensor's own class would be asked. What the run has made had no gradient before.
            with DisableTorchFunctionSubclass():
                is_of_the_run = isinstance(args[0], FakeTensor) or isinstance(args[0].grad, FakeTensor)
            # Frame 1 is `__torch_function__`, and 2 whoever asks for the gradient.
            if not is_of_the_run and not _sets_to_none(_caller(sys._getframe(2))):
                self.grads_read[id(args[0])] = args[0]
        elif func in (_GRAD_SET, _GRAD_DELETE, self.gradients.setter):
            self.grads_set.add(id(args[0]))
        elif func in FACTS:
            self.facts.note(func, args[0])
        elif func in _SETTERS:
            if _SETTERS[func] == "data" and self._is_its_memory(*args):  # `p.data -= x`: written in place, and assigned
                return None, None
            self._set(_SETTERS[func], args)
        elif func is _TENSOR.requires_grad_:
            self._set("requires_grad", (args[0], args[1] if len(args) > 1 else kwargs.get("requires_grad", True)))
        elif func is _TENSOR.detach_ and not isinstance(args[0], FakeTensor):
            self._detach(args[0])
        elif func in _HOOKS.values() and not isinstance(args[0], FakeTensor):
            raise self.tracer.refuse(
                func.__name__, "puts a hook on a tensor that outlives the call", "register the hook once, outside"
            )
        elif func in _HOOKS.values():
            self.hooked = self.hooked or (func.__name__, user_location())
        elif (result := tensor_of_numbers(func, args, kwargs, self.tracer.constants)) is not None:
            return result, None
        elif (stored := to_be_stored(func, args, self.tracer.constants)) is not None:
            return checked_by_operators(func)(*stored), None
        elif func in _BACKWARD:
            self.tracer.tape.fills_gradients |= func is not torch.autograd.grad
            inputs = args[1] if func is torch.autograd.grad and len(args) > 1 else kwargs.get("inputs")
            self._check_graph(_tensors(_outputs(args, kwargs)), _tensors(inputs))
            self._note_backward(args, kwargs)
        if self.repacked is None and changes_what_is_saved():
            self.repacked = "saved_tensors_hooks", user_location()
        weights = weights_of(func, args)
        if weights:
            self.tracer.recurrent.called_with(weights)
        return None, with_symbolic_numbers(checked_by_operators(func), kwargs)

    def _refuse_read(self, func: Any) -> None:
        if func in _PRINTS.values():
            raise self.tracer.refuse(
                "print",
                "shows a tensor's values, which a recording cannot wait for",
                "return the tensor and print it after the call",
            )
        raise self.tracer.refuse(
            func.__name__.strip("_") if func.__name__.endswith("__") else func.__name__,
            "reads a tensor's memory on the host, which a recording cannot wait for",
            "copy it by clone()" if func is _TENSOR.__deepcopy__ else "return the tensor and read it after the call",
        )

    def _set(self, name: str, args: Any) -> None:
        target, value = args[0], args[1]
        if name == "requires_grad" and (target.requires_grad == bool(value) or is_of_transform(target)):
            return
        if name == "requires_grad" and not isinstance(target, FakeTensor):
            self.tracer.switches(target)
        elif name == "data":
            raise self.tracer.refuse(
                "data = ...",
                "reassigns `data` of a tensor that outlives the call",
                "use an in-place operation (p.copy_(...) under torch.no_grad()), or do it outside of the program",
            )

    def _is_its_memory(self, target: torch.Tensor, value: object) -> bool:
        """Whether `target.data = value` would leave the target with the memory that it has, seen as it is seen."""
        if value is target:  # `model.to(dtype)`, where it has that dtype
            return True
        ours, given = (self.tracer.tape.values.get(id(tensor)) for tensor in (target, value))
        return ours is not None and given is not None and is_same_memory(ours.fake, given.fake)

    def _detach(self, target: torch.Tensor) -> None:
        if target.requires_grad:
            raise self.tracer.refuse(
                "detach_", "takes a tensor that outlives the call out of its graph", "use detach(), or do it outside"
            )

    def _note_backward(self, args: Any, kwargs: Any) -> None:
        self.tracer.tape.uses_backward = True
        if kwargs.get("retain_graph") or kwargs.get("create_graph"):
            return
        for tensor in _tensors(_outputs(args, kwargs)):
            nodes = list(history([tensor.grad_fn], self.consumed))
            # No backward consumes a leaf's accumulator.
            self.consumed.update(node for node in nodes if not node.name().endswith("AccumulateGrad"))

    def _check_graph(self, roots: list[torch.Tensor], ends: list[torch.Tensor]) -> None:
        """Refuse a backward into a graph that was there before the call: it would be consumed, its leaves written to."""
        given = [value.handle for value in self.tracer.tape.values.values() if value.is_input]
        given += [tensor for tensor in roots if not (isinstance(tensor, FakeTensor) or is_of_transform(tensor))]
        stops = [tensor.grad_fn for tensor in ends]  # it goes no further than to these
        foreign = [tensor.grad_fn for tensor in given if tensor.grad_fn is not None and tensor.grad_fn not in stops]
        if not foreign:
            return
        reached = {*history(tensor.grad_fn for tensor in roots)}
        for tensor, reason in self.tracer.lasting.given_history:
            if tensor.grad_fn in reached:  # it would be left with a graph that is used up
                self.tracer.tape.refusal = self.tracer.tape.refusal or reason
                raise Refusal(reason)
        if any(node in reached for node in foreign):
            raise self.tracer.refuse(
                "backward",
                "goes back into a graph that was made before the call, which a trace must leave as it is",
                "make the whole graph inside the program, or pass tensor.detach()",
            )

    def reaches_consumed(self, tensor: torch.Tensor) -> bool:
        """Whether a backward through `tensor` would meet a part that the program's own backward has freed.

        A sum or a view saves nothing: a backward went through it and freed nothing, so another one may.
        """
        been = [node for node in history([tensor.grad_fn]) if node in self.consumed]
        # The node of a write to a view tells nothing of what it saved, and cannot be gone through twice.
        return bool(been) and (is_used_up(tensor.grad_fn) or any(node.name().endswith("CopySlices") for node in been))


def _outputs(args: Any, kwargs: Any) -> Any:
    """What a backward starts from."""
    return args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of what may be one tensor or several."""
    return [
        item for item in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(item, torch.Tensor)
    ]


def _caller(frame: FrameType) -> FrameType:
    """The frame that reads a gradient, behind the property that stands there meanwhile."""
    return frame.f_back if frame.f_code.co_filename == _PROPERTY and frame.f_back is not None else frame


def _sets_to_none(frame: FrameType) -> bool:
    """Whether a gradient is read by torch's own code that puts None there, whatever it was."""
    return frame.f_code in _ZERO_GRAD and bool(frame.f_locals.get("set_to_none"))


_ZERO_GRAD = {inspect.unwrap(cls.zero_grad).__code__ for cls in (torch.optim.Optimizer, torch.nn.Module)}
_PROPERTY = Gradients.__init__.__code__.co_filename
# Method wrappers, made anew by each look-up: compared by `==` and `in`, never by `is`.
_GRAD_GET = _ATTRIBUTES["grad"].__get__
_GRAD_SET = _ATTRIBUTES["grad"].__set__
_GRAD_DELETE = _ATTRIBUTES["grad"].__delete__
