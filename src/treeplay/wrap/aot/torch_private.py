"""The private parts of torch behind the wrap stage for traced functions, each covered by a test that it exists."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.traceback import get_current_meta, has_preserved_node_meta
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from treeplay.facts.location import Location
from treeplay.observe.lines import location_in

apply_views = torch._C._functionalization.apply_view_meta_sequence
set_grad_enabled = torch._C._set_grad_enabled
is_any_autocast_enabled = torch._C._is_any_autocast_enabled
shares_storage = torch._C._is_alias_of  # type: ignore[attr-defined]
preserving_version = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]
keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks

GRADIENTS_COME_IN_A_LIST = hasattr(torch.autograd.Function, "boxed_grads_call")
"""Whether a node's backward can be given its gradients in one list, to be emptied; older torch passes a tuple."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What torch's tracing gives: the graph, its inputs, whether it is a joint graph, and the facts about the call."""

    graph: torch.fx.GraphModule
    inputs: Any
    is_joint: bool
    facts: Any


@contextlib.contextmanager
def traced(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    decompositions: dict[Any, Callable[..., Any]] | None,
    *,
    writes_inside: bool | None = None,
) -> Iterator[Traced]:
    """Trace `module` without data into a functional graph. The graph is to be partitioned and compiled inside.

    `writes_inside`: arguments that it writes are written by the graph itself, at its end, where that can be; by default where
    no gradient is needed."""
    needs_gradient = torch.is_grad_enabled() and any(map(_needs_gradient, inputs))
    with contextlib.ExitStack() as stack:
        stack.enter_context(functorch_config.patch(functionalize_rng_ops=False))
        if writes_inside is None:
            writes_inside = not needs_gradient
        found = _trace(stack, module, inputs, decompositions, writes_arguments=writes_inside)
        if needs_gradient:
            yield found
            return
        infos = found.facts.input_info
        is_mixed = found.facts.mutated_inp_runtime_indices or any(info.mutates_metadata for info in infos)
        if is_mixed and any(map(is_written_by_graph, infos)):
            # Torch mixes up the results where some arguments are written by the graph and others after it, and forgets
            # the new layout of one that the graph writes.
            found = _trace(stack, module, inputs, decompositions, writes_arguments=False)
        yield found


def _trace(
    stack: contextlib.ExitStack,
    module: torch.nn.Module,
    inputs: Sequence[Any],
    decompositions: dict[Any, Callable[..., Any]] | None,
    *,
    writes_arguments: bool,
) -> Traced:
    joint = aot_export_joint_with_descriptors(
        stack, module, tuple(inputs), decompositions=decompositions, keep_inference_input_mutations=writes_arguments
    )
    state, capture = joint._aot_state, joint._aot_graph_capture
    return Traced(capture.graph_module, capture.updated_flat_args, bool(state.needs_autograd), state.fw_metadata)


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def is_written_by_graph(info: Any) -> bool:
    """Whether the graph itself writes an argument, by what the trace noted of it; else its new contents are a result."""
    return bool(info.mutation_type.name == "MUTATED_IN_GRAPH")


def mode_of_fake(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """While this lasts, what is made is as fake as `tensor`; for a tensor with data, nothing changes."""
    return tensor.fake_mode if isinstance(tensor, FakeTensor) else contextlib.nullcontext()


def replayed_location() -> Location | None:
    """The user's line of the node that is being run, where a graph with noted lines is run node by node."""
    return location_in(get_current_meta().get("stack_trace")) if has_preserved_node_meta() else None


def is_wrapper(value: Any) -> bool:
    """Whether a tensor is a subclass made of inner tensors."""
    return isinstance(value, torch.Tensor) and bool(is_traceable_wrapper_subclass(value))


def fake_mode_of(values: Sequence[Any]) -> FakeTensorMode | None:
    """The fake mode that some of `values` are fakes of, or that is active."""
    found: FakeTensorMode | None = detect_fake_mode(list(values))
    return found


def without_autocast(function: Callable[..., Any], *inputs: Any) -> Any:
    """Call `function` with autocast off: its casts are in the graph."""
    with torch._C._DisableAutocast():
        return function(*inputs)


def keep_tracing_context() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """What enters the tracing context of this moment again, later."""
    context = TracingContext.try_get()
    return (lambda: tracing(context)) if context is not None else contextlib.nullcontext
