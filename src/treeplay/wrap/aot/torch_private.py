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
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._prims_common import CUDARngStateHelper
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, disable_functional_mode
from torch.fx.traceback import get_current_meta, has_preserved_node_meta
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from treeplay.facts.location import Location
from treeplay.observe.lines import location_in

apply_views = torch._C._functionalization.apply_view_meta_sequence
set_grad_enabled = torch._C._set_grad_enabled
is_any_autocast_enabled = torch._C._is_any_autocast_enabled
set_view_replay = torch._C._set_view_replay_enabled
is_view_replay_enabled = torch._C._is_view_replay_enabled
is_deterministic = torch._C._get_deterministic_algorithms
is_transformed = torch._C._are_functorch_transforms_active
shares_storage = torch._C._is_alias_of  # type: ignore[attr-defined]
preserving_version = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]
keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks

GRADIENTS_COME_IN_A_LIST = hasattr(torch.autograd.Function, "boxed_grads_call")
"""Whether a node's backward can be given its gradients in one list, to be emptied; older torch passes a tuple."""

_METHODS = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder"}
"""What the operators of Python's syntax are called."""
_GUESSES_ZEROS = "disable_guess_zero_tangent_for_mutated_input_subclass"
# Torch guesses that no gradient arrives for a written argument that is made of other tensors, and makes plain zeros. Ours
# are made of the same parts as the argument, so whatever arrives has its class.


class NodeType(type(torch.autograd.Function)):  # type: ignore[misc]
    """The class of generated nodes' classes. Compiled autograd, which runs a backward node by node, passes no list."""

    @property
    def boxed_grads_call(cls) -> bool:
        """Whether the backward is given its gradients in one list."""
        return GRADIENTS_COME_IN_A_LIST and not compiled_autograd.compiled_autograd_enabled


def apply_of(node_class: Any) -> Callable[..., Any]:
    """`apply` of an autograd function, without the look at each argument that torch's own has for transforms."""
    direct: Callable[..., Any] = super(torch.autograd.Function, node_class).apply
    return direct


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
    writes_inside: bool | None = None,
    functional_random: bool = False,
) -> Iterator[Traced]:
    """Trace `module` without data into a functional graph. The graph is to be partitioned and compiled inside.

    `writes_inside`: arguments that it writes are written by the graph itself, at its end, where that can be; by default where
    no gradient is needed. `functional_random`: random operators become functions of seed and offset."""
    needs_gradient = torch.is_grad_enabled() and any(map(_needs_gradient, inputs))
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {_GUESSES_ZEROS: True} if hasattr(functorch_config, _GUESSES_ZEROS) else {}
        stack.enter_context(functorch_config.patch(functionalize_rng_ops=functional_random, **options))
        if writes_inside is None:
            writes_inside = not needs_gradient
        found = _trace(stack, module, inputs, decompositions, writes_arguments=writes_inside)
        if needs_gradient:
            yield found
            return
        infos = found.facts.input_info
        is_mixed = found.facts.mutated_inp_runtime_indices or any(info.mutates_metadata for info in infos)
        if (is_mixed or found.subclasses is not None) and any(map(is_written_by_graph, infos)):
            # Torch mixes up the results where some arguments are written by the graph and others after it, and forgets
            # the new layout of one that the graph writes. What is made of other tensors may have to be rebuilt.
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
    return Traced(
        graph=capture.graph_module,
        inputs=capture.updated_flat_args,
        is_joint=bool(state.needs_autograd),
        facts=state.fw_metadata,
        subclasses=capture.maybe_subclass_meta,
    )


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def is_written_by_graph(info: Any) -> bool:
    """Whether the graph itself writes an argument, by what the trace noted of it; else its new contents are a result."""
    return bool(info.mutation_type.name == "MUTATED_IN_GRAPH")


def is_new(info: Any) -> bool:
    """Whether a result, by what the trace noted of it, leaves as the graph makes it: no argument, and no view to be taken."""
    return info.output_type.name in ("non_alias", "unsafe_view_alias", "custom_function_view")


def is_base_kept(info: Any) -> bool:
    """Whether what a result is a view of, by what the trace noted, leaves the graph beside the results."""
    return bool(info.output_type.name in ("alias_of_intermediate", "alias_of_intermediate_save_as_output"))


def is_reshaped(value: Any) -> bool:
    """Whether the shape of a traced tensor, or of one that it is made of, was ever changed in place."""
    if is_wrapper(value):
        return any(is_reshaped(getattr(value, name)) for name in value.__tensor_flatten__()[0])
    return isinstance(value, FunctionalTensor) and bool(torch._functionalize_has_metadata_mutation(value.elem))


def is_outgrown(value: Any) -> bool:
    """Whether a traced tensor, or one of several, still shows the size that it had before an operator resized it."""
    values = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(item, FunctionalTensor) and item.size() != item.elem.size() for item in values)


def view_steps(value: Any) -> list[Any] | None:
    """The steps by which a traced tensor is taken from the argument or the new tensor that it lies in."""
    if not isinstance(value, FunctionalTensor):
        return None
    steps: list[Any] = torch._C._functionalization.get_view_meta_sequence(value.elem)
    return steps


def traced_stride(target: Any) -> tuple[int, ...] | None:
    """The strides of what a traced tensor stands for now; None for another tensor."""
    if not isinstance(target, FunctionalTensor):
        return None
    with disable_functional_mode():
        found: Any = target
        return tuple(found.from_functional().stride())


def lay_traced(target: Any, stride: Sequence[int]) -> None:
    """Let a traced tensor lie with these strides from here on; what it holds stays."""
    with torch.no_grad():
        laid: Any = torch.empty_strided(target.size(), stride, dtype=target.dtype, device=target.device).copy_(target)
    with disable_functional_mode():
        target.replace_(laid.from_functional())
        target.commit_update()
        target.sync()


def is_elementwise(name: str) -> bool:
    """Whether an operator of this name works element by element."""
    packet = getattr(torch.ops.aten, _METHODS.get(name, name), None)
    overloads = packet.overloads() if packet is not None else ()
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in overloads)


@contextlib.contextmanager
def without_data(values: Sequence[Any]) -> Iterator[list[Any]]:
    """Tensors that are like `values` and of which nothing is traced, for the time of a block; other values as they are."""

    def like(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")

    with _disable_current_modes(), torch.no_grad():
        yield list(map(like, values))


def mode_of_fake(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """While this lasts, what is made is as fake as `tensor`; for a tensor with data, nothing changes."""
    return tensor.fake_mode if isinstance(tensor, FakeTensor) else contextlib.nullcontext()


def replayed_location() -> Location | None:
    """The user's line of the node that is being run, where a graph with noted lines is run node by node."""
    return location_in(get_current_meta().get("stack_trace")) if has_preserved_node_meta() else None


def has_data(tensor: torch.Tensor) -> bool:
    """Whether a tensor has elements that lie at an address."""
    is_made_up = isinstance(tensor, FakeTensor | FunctionalTensor) or tensor.is_meta
    return not is_made_up and tensor.layout is torch.strided and tensor.numel() > 0


def is_wrapper(value: Any) -> bool:
    """Whether a tensor is a subclass made of inner tensors."""
    return isinstance(value, torch.Tensor) and bool(is_traceable_wrapper_subclass(value))


def fake_mode_of(values: Sequence[Any]) -> FakeTensorMode | None:
    """The fake mode that some of `values` are fakes of, or that is active."""
    found: FakeTensorMode | None = detect_fake_mode(list(values))
    return found


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
