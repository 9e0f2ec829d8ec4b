"""The facts that torch's tracing found → a `CallPlan`, or a refusal of what cannot be done yet."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch

from treeplay.errors import InternalError
from treeplay.wrap.aot.capture import Seen, is_leaf, refusal
from treeplay.wrap.aot.overlap import overlap
from treeplay.wrap.aot.partial import groups_of
from treeplay.wrap.aot.plan import (
    Again,
    CallPlan,
    Flag,
    Layout,
    New,
    Node,
    Recipe,
    Result,
    Same,
    Tangent,
    ViewOfArgument,
    ViewOfValue,
    Write,
)
from treeplay.wrap.aot.torch_private import Traced, is_wrapper

_SHAPES = frozenset(
    ("t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_", "resize_", "resize_as_")
)
_NEW = ("non_alias", "unsafe_view_alias", "custom_function_view")


def plan_call(
    traced: Traced,
    seen: Seen,
    *,
    samples: Sequence[Any],
    arguments: tuple[str, ...],
    copies: tuple[tuple[int, int], ...],
    positions: Sequence[int],
) -> CallPlan:
    """The plan but for its node. `positions` are where the traced function's arguments stand in the call."""
    facts = traced.facts
    _refuse_written_after_reshaped(traced, seen)
    _refuse_what_is_missing(facts, seen, samples, arguments=[arguments[at] for at in positions])
    writes = _writes(traced, samples, positions)
    written = [k for k, info in enumerate(facts.input_info) if info.mutates_data or info.mutates_metadata]
    return CallPlan(
        arguments=arguments,
        copies=copies,
        apart=_apart(samples, written, positions),
        writes=writes,
        touched=tuple(sorted({positions[k] for k in seen.touched} - {write.argument for write in writes})),
        results=_results(traced, seen, len(writes), positions),
        values=len(writes) + len(facts.output_info) + facts.num_intermediate_bases,
        node=None,
        grad_mode_after=facts.grad_enabled_mutation,
    )


def _refuse_what_is_missing(facts: Any, seen: Seen, samples: Sequence[Any], *, arguments: Sequence[str]) -> None:
    if any(is_wrapper(sample) for sample in samples) or any(
        issubclass(info.raw_type, torch.Tensor) and hasattr(info.raw_type, "__tensor_flatten__")
        for info in facts.output_info
        if info.raw_type.__name__ not in ("FunctionalTensor", "FakeTensor", "Parameter")
    ):
        raise refusal("wrap", "a tensor subclass made of inner tensors", None)
    if len(facts.input_info) != len(samples):
        raise refusal("write", "two arguments share memory, and one of them is written", seen.line())
    if facts.tokens:
        raise refusal("wrap", "an operator with side effects that must stay in order", None)
    for name, sample, info in zip(arguments, samples, facts.input_info, strict=True):
        tracked = not (info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode)
        if info.mutates_storage_metadata or info.mutation_inductor_storage_resize:
            raise refusal("write", f"the storage of argument `{name}` is replaced or resized", seen.line())
        if info.mutates_metadata and info.requires_grad and (info.mutates_data or sample._is_view()):
            # Its history would be that of a tensor with the old shape.
            raise refusal("write", f"`{name}` needs a gradient, and its shape changes in place", seen.line())
        if info.mutates_data and is_leaf(sample) and tracked and not seen.writes:
            # Nobody saw how it was done, so nobody can tell whether eager would have raised.
            raise refusal("write", f"leaf argument `{name}` is written, and it needs a gradient", None)
    for name, where in seen.writes:
        if name in ("requires_grad_", "detach_", "share_memory_"):
            raise refusal(name, "changes how autograd sees a tensor, which a trace does not keep", where)


def _refuse_written_after_reshaped(traced: Traced, seen: Seen) -> None:
    """Torch's trace gives a view taken before `t_` a transposed gradient of a write that comes after it."""
    names = [name for name, _ in seen.writes]
    shaped = next((k for k, name in enumerate(names) if name in _SHAPES), len(names))
    if traced.is_joint and any(name not in _SHAPES for name in names[shaped:]):
        name, where = seen.writes[shaped]
        raise refusal(name, "changes a shape in place before a write, where gradients are needed", where)


def _outputs(traced: Traced) -> list[Any]:
    return list(traced.graph.graph.output_node().args[0])  # type: ignore[arg-type]


def _fake(node: Any) -> Any:
    return node.meta["val"] if isinstance(node, torch.fx.Node) else node


def _layout(tensor: torch.Tensor) -> Layout:
    numbers = (*tensor.size(), *tensor.stride(), tensor.storage_offset())
    if not all(type(number) is int for number in numbers):
        raise refusal("wrap", "a view or a gradient whose sizes are not known at the trace", None)
    return Layout(tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()))


def _writes(traced: Traced, samples: Sequence[Any], positions: Sequence[int]) -> tuple[Write, ...]:
    facts, outputs = traced.facts, _outputs(traced)
    writes = []
    for value, k in enumerate(facts.mutated_inp_runtime_indices):
        info = facts.input_info[k]
        hidden = info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode
        hidden = hidden or is_leaf(samples[k])
        layout = _layout(_fake(outputs[value])) if info.mutates_metadata else None
        writes.append(Write(positions[k], value, info.mutates_data, layout, not hidden))
    return tuple(writes)


def _results(traced: Traced, seen: Seen, first: int, positions: Sequence[int]) -> tuple[Result, ...]:
    facts, outputs = traced.facts, _outputs(traced)
    bases = first + len(facts.output_info)
    results: list[Result] = []
    for k, info in enumerate(facts.output_info):
        kind, value = info.output_type.name, first + k
        if k in seen.again:
            results.append(Again(seen.again[k]))
        elif kind in _NEW:
            results.append(New(value))
        elif kind == "is_input":
            results.append(Same(positions[info.base_idx]))
        elif kind == "alias_of_input":
            needs = facts.input_info[info.base_idx].requires_grad
            if needs and facts.input_info[info.base_idx].mutates_metadata:
                raise refusal("view", "a result views an argument whose shape changes in place", seen.line())
            recipe = _recipe(info, _fake(outputs[value]), base_needs_grad=needs)
            results.append(ViewOfArgument(positions[info.base_idx], recipe))
        else:
            is_result = kind == "alias_of_intermediate_base_is_user_output"
            base = (first if is_result else bases) + info.base_idx
            needs = facts.output_info[info.base_idx].requires_grad if is_result else traced.is_joint
            results.append(ViewOfValue(base, _recipe(info, _fake(outputs[value]), base_needs_grad=needs)))
    return tuple(results)


def _recipe(info: Any, view: torch.Tensor, *, base_needs_grad: bool) -> Recipe:
    flag = Flag.KEEP
    steps = info.view_meta_sequence.sequence if info.view_meta_sequence is not None else ()
    if info.requires_grad and any(type(step).__name__.startswith("detach") for step in steps):
        raise refusal("detach", "a detached view of an argument got a history of its own, and is a result", None)
    if base_needs_grad and not info.requires_grad:
        flag = Flag.DETACH
    elif info.requires_grad and not base_needs_grad:
        flag = Flag.REQUIRE
    return Recipe(_steps(info.view_meta_sequence), _layout(view), flag)


def _steps(sequence: Any) -> bytes | None:
    if sequence is None or any(step.has_symbolic_inputs for step in sequence.sequence):
        return None
    try:
        return pickle.dumps(sequence.sequence)
    except Exception:  # an older torch, whose view steps are not data
        return None


def _apart(samples: Sequence[Any], written: Sequence[int], positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    tensors = [k for k, sample in enumerate(samples) if isinstance(sample, torch.Tensor)]
    pairs = [(min(k, other), max(k, other)) for k in written for other in tensors if other != k]
    for one, other in pairs:
        if overlap(samples[one], samples[other]):
            raise refusal("write", "two arguments share memory, and one of them is written", None)
    return tuple(sorted({(positions[one], positions[other]) for one, other in pairs}))


def plan_node(
    traced: Traced,
    plan: CallPlan,
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule,
    positions: Sequence[int],
) -> Node:
    """What the autograd node does, once the joint graph is cut in two."""
    facts = traced.facts
    saved = list(forward.graph.output_node().args[0])[plan.values :]  # type: ignore[arg-type]
    for node in saved:
        if not isinstance(_fake(node), torch.Tensor):
            raise refusal("wrap", "a number that the trace does not know is needed for the backward", None)
    values = _values_with_tangents(facts, plan)
    inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
    if len(inputs) != len(saved) + len(values):
        raise InternalError(f"the backward has {len(inputs)} inputs, expected {len(saved)} + {len(values)}")
    arriving = inputs[len(saved) :]
    tangents = tuple(_tangent(value, _fake(node)) for value, node in zip(values, arriving, strict=True))
    feeds = _feeds(backward, arriving, len(facts.input_info))
    return Node(
        returned=_returned(plan),
        differentiable=values,
        saved=len(saved),
        unchecked=sum(bool(node.meta.get("saved_tensor_with_no_vc_check")) for node in saved),
        tangents=tangents,
        feeds=feeds,
        groups=groups_of(backward, len(tangents)),
        detached=tuple(
            positions[k]
            for k, info in enumerate(facts.input_info)
            if info.requires_grad and not info.is_leaf and feeds[k] is None
        ),
    )


def _values_with_tangents(facts: Any, plan: CallPlan) -> tuple[int, ...]:
    """Which values torch's joint graph takes a gradient for, in its order."""
    values = []
    for value, k in enumerate(facts.mutated_inp_runtime_indices):
        info = facts.input_info[k]
        if info.mutates_data and info.requires_grad:
            values.append(value)
    for k, info in enumerate(facts.output_info):
        needs = getattr(info, "requires_grad_for_backward", info.requires_grad)
        if info.output_type.name in _NEW and issubclass(info.raw_type, torch.Tensor) and needs:
            values.append(len(plan.writes) + k)
    bases = len(plan.writes) + len(facts.output_info)
    return (*values, *range(bases, plan.values))


def _returned(plan: CallPlan) -> tuple[int, ...]:
    """Values that something outside the node uses."""
    used = {write.value for write in plan.writes if write.has_data}
    used |= {result.value for result in plan.results if isinstance(result, New | ViewOfValue)}
    return tuple(sorted(used))


def _tangent(value: int, fake: torch.Tensor) -> Tangent:
    return Tangent(value, _layout(fake), str(fake.dtype), str(fake.device))


def _feeds(
    backward: torch.fx.GraphModule, tangents: Sequence[torch.fx.Node], arguments: int
) -> tuple[tuple[int, ...] | None, ...]:
    """From which tangents each gradient comes: reachability in the backward graph."""
    reach: dict[torch.fx.Node, frozenset[int]] = {node: frozenset([k]) for k, node in enumerate(tangents)}
    for node in backward.graph.nodes:
        if node.op != "output" and node not in reach:
            reach[node] = frozenset().union(*(reach[source] for source in node.all_input_nodes))
    gradients = list(backward.graph.output_node().args[0])  # type: ignore[arg-type]
    if len(gradients) != arguments:
        raise InternalError(f"the backward gives {len(gradients)} gradients, expected {arguments}")
    return tuple(tuple(sorted(reach[node])) if node is not None else None for node in gradients)
