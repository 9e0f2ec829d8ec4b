"""The facts that torch's tracing found → a `CallPlan`, or a refusal of what cannot be done yet."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch

from treeplay.errors import InternalError
from treeplay.wrap.aot.capture import Seen, is_leaf, refusal
from treeplay.wrap.aot.compilers import Compilers
from treeplay.wrap.aot.overlap import overlap
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
    WrappedTangent,
    Write,
)
from treeplay.wrap.aot.random_states import generator_inputs, refuse_unsupported_random
from treeplay.wrap.aot.subclass_rules import refuse_unsupported_view
from treeplay.wrap.aot.subclasses import Wrapper, opened, starts, tangent_wrappers, value_fakes, width
from treeplay.wrap.aot.torch_private import Traced

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
    compilers: Compilers,
) -> CallPlan:
    """The plan but for its node. `positions` are where the traced function's arguments stand in the call."""
    facts = traced.facts
    _refuse_written_after_reshaped(traced, seen)
    _refuse_what_is_missing(facts, seen, samples, arguments=[arguments[at] for at in positions])
    if compilers.functional_random:
        refuse_unsupported_random(traced)
    writes = _writes(traced, samples, positions)
    written = [k for k, info in enumerate(facts.input_info) if info.mutates_data or info.mutates_metadata]
    return CallPlan(
        arguments=arguments,
        copies=copies,
        apart=_apart(samples, written, positions),
        writes=writes,
        touched=tuple(sorted({positions[k] for k in seen.touched} - {write.argument for write in writes})),
        results=_results(traced, seen, positions),
        values=len(writes) + len(facts.output_info) + facts.num_intermediate_bases,
        node=None,
        grad_mode_after=facts.grad_enabled_mutation,
        opened=opened(traced),
        is_guarded=compilers.is_guarded,
        tokens=len(facts.tokens),
        has_functional_random=compilers.functional_random,
    )


def _refuse_what_is_missing(facts: Any, seen: Seen, samples: Sequence[Any], *, arguments: Sequence[str]) -> None:
    if len(facts.input_info) != len(samples):
        raise refusal("write", "two arguments share memory, and one of them is written", seen.line())
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
    """What the graph returns but for its tokens."""
    return list(traced.graph.graph.output_node().args[0])[len(traced.facts.tokens) :]  # type: ignore[arg-type]


def _value_fakes(traced: Traced) -> list[Any]:
    return value_fakes(traced, [_fake(node) for node in _outputs(traced)])


def _argument_fake(traced: Traced, k: int) -> Any:
    """The wrapper of fakes that stood for an argument; None for a plain one."""
    return getattr(traced.facts.subclass_inp_meta[k], "original_subclass", None) if traced.subclasses else None


def _fake(node: Any) -> Any:
    return node.meta["val"] if isinstance(node, torch.fx.Node) else node


def _layout(tensor: torch.Tensor) -> Layout:
    numbers = (*tensor.size(), *tensor.stride(), tensor.storage_offset())
    if not all(type(number) is int for number in numbers):
        raise refusal("wrap", "a view or a gradient whose sizes are not known at the trace", None)
    return Layout(tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()))


def _writes(traced: Traced, samples: Sequence[Any], positions: Sequence[int]) -> tuple[Write, ...]:
    facts, fakes = traced.facts, _value_fakes(traced)
    writes = []
    for value, k in enumerate(facts.mutated_inp_runtime_indices):
        info = facts.input_info[k]
        hidden = info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode
        hidden = hidden or is_leaf(samples[k])
        layout = _layout(fakes[value]) if info.mutates_metadata else None
        writes.append(Write(positions[k], value, info.mutates_data, layout, not hidden))
    return tuple(writes)


def _results(traced: Traced, seen: Seen, positions: Sequence[int]) -> tuple[Result, ...]:
    facts, fakes = traced.facts, _value_fakes(traced)
    first = len(facts.mutated_inp_runtime_indices)
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
            recipe = _recipe(info, fakes[value], base_needs_grad=needs)
            refuse_unsupported_view(_argument_fake(traced, info.base_idx), fakes[value], k)
            results.append(ViewOfArgument(positions[info.base_idx], recipe))
        else:
            is_result = kind == "alias_of_intermediate_base_is_user_output"
            base = (first if is_result else bases) + info.base_idx
            needs = facts.output_info[info.base_idx].requires_grad if is_result else traced.is_joint
            refuse_unsupported_view(fakes[base], fakes[value], k)
            results.append(ViewOfValue(base, _recipe(info, fakes[value], base_needs_grad=needs)))
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
    saved = list(forward.graph.output_node().args[0])[plan.returned_values :]  # type: ignore[arg-type]
    for node in saved:
        if not isinstance(_fake(node), torch.Tensor):
            raise refusal("wrap", "a number that the trace does not know is needed for the backward", None)
    values = _values_with_tangents(facts, plan)
    wrappers = tangent_wrappers(traced, len(values))
    inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
    arriving = inputs[len(saved) : len(saved) + sum(map(width, wrappers))]
    devices = [str(generator.device) for generator in generator_inputs(forward)]
    tokens = facts.num_backward_tokens
    others = tokens + 2 * plan.has_functional_random + len(devices)
    if len(inputs) != len(saved) + len(arriving) + others:
        expected = f"{len(saved)} + {len(arriving)} + {others}"
        raise InternalError(f"the backward has {len(inputs)} inputs, expected {expected}")
    groups = [arriving[at : at + width(part)] for at, part in zip(starts(wrappers), wrappers, strict=True)]
    feeds = _feeds(backward, groups, plan, facts)
    return Node(
        returned=_returned(plan),
        differentiable=values,
        saved=len(saved),
        unchecked=_unchecked(saved),
        tangents=tuple(_tangent(*parts) for parts in zip(values, wrappers, groups, strict=True)),
        feeds=feeds,
        detached=tuple(
            positions[k]
            for k, info in enumerate(facts.input_info)
            if info.requires_grad and not info.is_leaf and feeds[k] is None and not _is_opened(plan, k)
        ),
        generators=tuple(devices),
        tokens=tokens,
        is_deterministic=bool(facts.deterministic),
    )


def _is_opened(plan: CallPlan, k: int) -> bool:
    return plan.opened is not None and plan.opened.arguments[k] is not None


def _unchecked(saved: Sequence[torch.fx.Node]) -> int:
    """How many of the saved values, counted from the end, are kept without noticing later writes.

    States of random generators come after all others; nobody else holds them.
    """
    first = next((k for k, node in enumerate(saved) if node.meta.get("saved_tensor_with_no_vc_check")), len(saved))
    return len(saved) - first


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


def _tangent(value: int, wrapper: Wrapper | None, nodes: Sequence[torch.fx.Node]) -> Tangent | WrappedTangent:
    parts = []
    for node in nodes:
        fake = _fake(node)
        if not isinstance(fake, torch.Tensor):
            raise refusal("wrap", "a gradient made of tensors and something else", None)
        parts.append(Tangent(value, _layout(fake), str(fake.dtype), str(fake.device)))
    return parts[0] if wrapper is None else WrappedTangent(value, wrapper, tuple(parts))


def _feeds(
    backward: torch.fx.GraphModule, tangents: Sequence[Sequence[torch.fx.Node]], plan: CallPlan, facts: Any
) -> tuple[tuple[int, ...] | None, ...]:
    """From which tangents each gradient comes: reachability in the backward graph."""
    reach: dict[torch.fx.Node, frozenset[int]] = {
        node: frozenset([k]) for k, nodes in enumerate(tangents) for node in nodes
    }
    for node in backward.graph.nodes:
        if node.op != "output" and node not in reach:
            reach[node] = frozenset().union(*(reach[source] for source in node.all_input_nodes))
    gradients = list(backward.graph.output_node().args[0])  # type: ignore[arg-type]
    arguments = len(facts.input_info)
    wrappers = plan.opened.gradients if plan.opened is not None else (None,) * arguments
    expected = sum(map(width, wrappers))
    if (
        len(gradients) != expected + facts.num_backward_tokens + plan.has_functional_random
        or len(wrappers) != arguments
    ):
        raise InternalError(f"the backward gives {len(gradients)} gradients, expected {expected}")
    feeds: list[tuple[int, ...] | None] = []
    for at, wrapper in zip(starts(wrappers), wrappers, strict=True):
        nodes = [node for node in gradients[at : at + width(wrapper)] if isinstance(node, torch.fx.Node)]
        feeds.append(tuple(sorted(frozenset().union(*(reach[node] for node in nodes)))) if nodes else None)
    return tuple(feeds)
