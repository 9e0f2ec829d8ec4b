"""The private parts of torch behind the wrap stage for traced functions, each covered by a test that it exists."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo import compiled_autograd
from torch._dynamo import config as dynamo_config
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext, tracing
from torch._prims_common import CUDARngStateHelper
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

apply_views = torch._C._functionalization.apply_view_meta_sequence
set_grad_enabled = torch._C._set_grad_enabled
is_any_autocast_enabled = torch._C._is_any_autocast_enabled
set_view_replay = torch._C._set_view_replay_enabled
is_view_replay_enabled = torch._C._is_view_replay_enabled
is_deterministic = torch._C._get_deterministic_algorithms
is_transformed = torch._C._are_functorch_transforms_active
shares_storage = torch._C._is_alias_of  # type: ignore[attr-defined]
preserving_version = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Traced:
    """What torch's tracing gives: the graph, its inputs, whether it is a joint graph, and the facts about the call.

    `subclasses` are facts about tensors made of other tensors, if the function has to do with any.
    """

    graph: torch.fx.GraphModule
    inputs: Any
    is_joint: bool
    facts: Any
    subclasses: Any


@contextlib.contextmanager
def traced(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    decompositions: dict[Any, Callable[..., Any]] | None,
    *,
    functional_random: bool = False,
) -> Iterator[Traced]:
    """Trace `module` without data into a functional graph. The graph is to be partitioned and compiled inside."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(functorch_config.patch(functionalize_rng_ops=functional_random))
        joint = aot_export_joint_with_descriptors(stack, module, tuple(inputs), decompositions=decompositions)
        state, capture = joint._aot_state, joint._aot_graph_capture
        yield Traced(
            graph=capture.graph_module,
            inputs=capture.updated_flat_args,
            is_joint=bool(state.needs_autograd),
            facts=state.fw_metadata,
            subclasses=capture.maybe_subclass_meta,
        )


def is_wrapper(value: Any) -> bool:
    """Whether a tensor is a subclass made of inner tensors."""
    return isinstance(value, torch.Tensor) and bool(is_traceable_wrapper_subclass(value))


def waited(value: Any) -> Any:
    """A tensor that is still on its way from other processes is waited for."""
    collectives = sys.modules.get("torch.distributed._functional_collectives")
    if collectives is not None and isinstance(value, collectives.AsyncCollectiveTensor):
        return value.trigger_wait()
    return value


def without_autocast(function: Callable[..., Any], *inputs: Any) -> Any:
    """Call `function` with autocast off: its casts are in the graph."""
    with torch._C._DisableAutocast():
        return function(*inputs)


def keep_tracing_context() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """What enters the tracing context of this moment again, later."""
    context = TracingContext.try_get()
    return (lambda: tracing(context)) if context is not None else contextlib.nullcontext


def random_values() -> list[torch.Tensor]:
    """Seed and offset of the CUDA device's default generator."""
    return [*CUDARngStateHelper.get_torch_state_as_tuple()]


def set_random_offset(offset: torch.Tensor) -> None:
    """Move the CUDA device's default generator to an offset."""
    CUDARngStateHelper.set_new_offset(offset)


def wants_fakes_first() -> bool:
    """Whether whoever traces this function asks for a first call that computes nothing."""
    context = TracingContext.try_get()
    return context is not None and bool(context.fakify_first_call)


def is_autograd_compiled() -> bool:
    """Whether backwards are traced by compiled autograd."""
    return bool(compiled_autograd.compiled_autograd_enabled or dynamo_config.compiled_autograd)


def in_callers_context(function: Callable[..., Any], *inputs: Any) -> Any:
    """Call `function` with the context variables of whoever called backward, if this thread is another one."""
    if torch._C._is_key_in_tls("context"):
        context = torch._C._get_obj_in_tls("context")
        if context is not None:
            return context.copy().run(function, *inputs)
    return function(*inputs)
