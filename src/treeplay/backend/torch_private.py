"""The private parts of torch behind the backend, each covered by a test that it exists and behaves."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.graph import CodeGen, _PyTreeCodeGen
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from treeplay.errors import InternalError

# What Dynamo's graphs call to change modes.
ENTER_INFERENCE = torch.autograd.grad_mode._enter_inference_mode
EXIT_INFERENCE = torch.autograd.grad_mode._exit_inference_mode
SET_GRAD = torch._C._set_grad_enabled


def fake_mode_of(values: Sequence[Any]) -> FakeTensorMode | None:
    """The fake mode that some of `values` are fakes of, or that is active."""
    found: FakeTensorMode | None = detect_fake_mode(list(values))
    return found


def new_fake_mode() -> FakeTensorMode:
    """A fake mode for sizes that are known. Inductor's cache passes by graphs whose mode has no shape environment."""
    return FakeTensorMode(shape_env=ShapeEnv())


def is_real(value: Any) -> bool:
    """Whether a value is a tensor with data."""
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)


def is_view_elsewhere(tensor: torch.Tensor) -> bool:
    """Whether a tensor without history was made as a view, and one of the two was given other memory since."""
    base = None if tensor.requires_grad or is_wrapper(tensor) else tensor._base
    return base is not None and not torch._C._is_alias_of(tensor, base)  # type: ignore[attr-defined]


def suggested_format(tensor: torch.Tensor) -> torch.memory_format:
    """How operators that make a new tensor lay it out for one like this: contiguous, or with the channels last."""
    found: torch.memory_format = torch._prims_common.suggest_memory_format(tensor)
    return found


def report_strides(strides: Sequence[Any]) -> None:
    """Tell the tracing context, if it asks, the strides of each result of what was compiled; None for no tensor."""
    context = TracingContext.try_get()
    if context is None or context.output_strides is None:
        return
    if context.output_strides:
        raise InternalError(f"strides were reported already: {context.output_strides}")
    context.output_strides.extend(stride if stride is None else tuple(map(int, stride)) for stride in strides)


def compile_lock() -> contextlib.AbstractContextManager[Any]:
    """The lock under which torch compiles. Where Dynamo was never imported nobody else compiles."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return frames.compile_lock if frames is not None else contextlib.nullcontext()


def is_wrapper(value: Any) -> bool:
    """Whether a tensor is a subclass made of inner tensors."""
    return isinstance(value, torch.Tensor) and bool(is_traceable_wrapper_subclass(value))


def without_dispatch_modes() -> contextlib.AbstractContextManager[Any]:
    """While this lasts, no dispatch mode sees what runs."""
    return _disable_current_modes()


def without_autocast() -> contextlib.AbstractContextManager[Any]:
    """While this lasts, autocast is off on every device."""
    return torch._C._DisableAutocast()


def exporter_trees(graph: torch.fx.Graph) -> tuple[Any, Any] | None:
    """The trees of inputs and of the result that an exporter left in a graph's code generator, if one did."""
    codegen = graph._codegen
    if not isinstance(codegen, _PyTreeCodeGen):
        return None
    return codegen.pytree_info.in_spec, codegen.pytree_info.out_spec


@contextlib.contextmanager
def kept_operators(operators: Collection[Any]) -> Iterator[None]:
    """While this lasts, calls of these operators are no dead code, though nobody uses what they give."""
    known: set[Any] = torch.fx.node._side_effectful_functions
    added = set(operators) - known
    known |= added
    try:
        yield
    finally:
        known -= added


def drop_exporter_trees(graph: torch.fx.Graph) -> None:
    """Make a graph's function take and return what its nodes do."""
    graph.set_codegen(CodeGen())


def min_cut(joint: torch.fx.GraphModule, inputs: Sequence[Any], **known: Any) -> tuple[Any, Any]:
    """Split a joint graph so that little has to be saved: what is cheap to compute is computed again in the backward."""
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **known)
    return forward, backward


def stored_random_states() -> contextlib.AbstractContextManager[Any]:
    """While this lasts, a split stores states of the default generators for random numbers that are drawn again."""
    without_pairs: contextlib.AbstractContextManager[Any] = functorch_config.patch(
        graphsafe_rng_functionalization=False
    )
    return without_pairs


def keep_all(joint: torch.fx.GraphModule, inputs: Sequence[Any], **known: Any) -> tuple[Any, Any]:
    """Split a joint graph so that nothing is computed twice: what the backward reads is saved, as eager saves it."""
    known.pop("static_lifetime_input_indices", None)  # what is kept does not depend on it
    forward, backward = default_partition(joint, inputs, **known)
    return forward, backward


def schema_returns(target: Callable[..., Any]) -> int | None:
    """How many values an ATen operator returns by its schema; None for anything else."""
    return len(target._schema.returns) if isinstance(target, torch._ops.OpOverload) else None


def note_changing_sizes(tensor: torch.Tensor, dimensions: frozenset[int]) -> None:
    """Tell Dynamo, should it meet this tensor, that these dimensions' sizes change. It makes no guard of that."""
    name = _mark_of_changing_sizes()
    tensor.__dict__[name] = set(dimensions) | tensor.__dict__.get(name, set())


@functools.cache
def _mark_of_changing_sizes() -> str:
    """The attribute under which this torch passes such marks from graph to graph; before it had one, that of a user's mark."""
    own = "_dynamo_propagated_dynamic_indices"
    return own if own in inspect.getsource(torch._dynamo.utils) else "_dynamo_weak_dynamic_indices"
