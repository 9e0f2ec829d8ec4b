"""Tracing of a function with its derivative, and the class of generated autograd nodes. Imports Dynamo."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo import compiled_autograd
from torch._dynamo import config as dynamo_config
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from treeplay.torch_seam.flags import AutocastDtypes

GRADIENTS_COME_IN_A_LIST = hasattr(torch.autograd.Function, "boxed_grads_call")
"""Whether a node's backward can be given its gradients in one list, to be emptied; older torch passes a tuple."""

_GUESSES_ZEROS = "disable_guess_zero_tangent_for_mutated_input_subclass"
# Torch guesses that no gradient arrives for a written argument that is made of other tensors, and makes plain zeros. Ours
# are made of the same parts as the argument, so whatever arrives has its class.

_IN_BACKWARD = "backward_pass_autocast"
# Unless told otherwise, torch traces a backward under the autocast of its forward; eager runs it under that of its caller,
# who is advised to have left autocast by then.


class GeneratedFunction(torch.autograd.Function):
    """What generated autograd functions are derived from."""

    # No property: torch asks for it in each forward, from C++, where an exception of a signal's handler would be lost.
    boxed_grads_call = GRADIENTS_COME_IN_A_LIST

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> Any:
        # Compiled autograd runs a backward node by node and refuses those that want a list, which it asks for after this.
        # The backward of one that it has met gets tuples from then on, and takes both.
        ctx._forward_cls.boxed_grads_call = False
        return torch.autograd.Function._compiled_autograd_key(ctx)


def apply_of(node_class: Any) -> Callable[..., Any]:
    """`apply` of an autograd function, without the look at each argument that torch's own has for transforms."""
    direct: Callable[..., Any] = super(torch.autograd.Function, node_class).apply
    return direct


def unwanted_inputs(ctx: Any) -> tuple[int, ...]:
    """The arguments of a custom function that need gradients which the backward that runs now is not asked for."""
    edges = (node for node, _ in ctx.next_functions if node is not None)
    needing = (k for k, needs in enumerate(ctx.needs_input_grad) if needs)
    return tuple(k for k, node in zip(needing, edges, strict=True) if not _is_wanted(node))


def _is_wanted(node: Any) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(node))
    # What torch raises at a leaf whose gradient `torch.autograd.grad` is to give.
    except RuntimeError:
        return True


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
    in_backward: AutocastDtypes = (),
) -> Iterator[Traced]:
    """Trace `module` without data into a functional graph. The graph is to be partitioned and compiled inside.

    `writes_inside`: arguments that it writes are written by the graph itself, at its end, where that can be; by default where
    no gradient is needed. `in_backward`: the autocast of the caller of the backward."""
    needs_gradient = torch.is_grad_enabled() and any(map(_needs_gradient, inputs))
    # Most graphs are read and taken apart and never run: each one's code is generated when it is called.
    with contextlib.ExitStack() as stack, _use_lazy_graph_module(True):
        options: dict[str, Any] = {_GUESSES_ZEROS: True} if hasattr(functorch_config, _GUESSES_ZEROS) else {}
        if in_backward or getattr(functorch_config, _IN_BACKWARD, None) == "same_as_forward":
            options[_IN_BACKWARD] = [{"device_type": kind, "dtype": dtype} for kind, dtype in in_backward]
        stack.enter_context(functorch_config.patch(functionalize_rng_ops=False, **options))
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
    with warnings.catch_warnings():
        # Torch traces under anomaly detection of its own, which tells of each backward that cannot be traced.
        for told in ("Error detected in", r"\s*Previous calculation was induced by"):
            warnings.filterwarnings("ignore", told, UserWarning)
        joint = aot_export_joint_with_descriptors(
            stack, module, tuple(inputs), decompositions=decompositions, keep_inference_input_mutations=writes_arguments
        )
    state, capture = joint._aot_state, joint._aot_graph_capture
    if capture.maybe_subclass_meta is not None:
        _refuse_reshaped_wrappers(state.fw_metadata)
    return Traced(
        graph=capture.graph_module,
        inputs=capture.updated_flat_args,
        is_joint=bool(state.needs_autograd),
        facts=state.fw_metadata,
        subclasses=capture.maybe_subclass_meta,
    )


def _refuse_reshaped_wrappers(facts: Any) -> None:
    """What torch's trace refused itself before 2.14, with its words; since then it leaves an argument its old shape."""
    if any(
        info.mutates_metadata and hasattr(meta, "attrs")
        for info, meta in zip(facts.input_info, facts.subclass_inp_meta, strict=True)
    ):
        raise RuntimeError("Metadata mutations are currently not allowed on tensor subclasses")


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


def is_autograd_compiled() -> bool:
    """Whether backwards are traced by compiled autograd."""
    return bool(compiled_autograd.compiled_autograd_enabled or dynamo_config.compiled_autograd)
