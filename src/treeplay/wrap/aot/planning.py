"""The facts that torch's tracing found → a `CallPlan`, or a refusal of what cannot be done yet."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from treeplay.errors import InternalError
from treeplay.wrap.aot import torch_private
from treeplay.wrap.aot.arrange import Arrangement, Noted
from treeplay.wrap.aot.capture import Seen, is_leaf, refusal
from treeplay.wrap.aot.overlap import overlap, span
from treeplay.wrap.aot.partial import groups_of
from treeplay.wrap.aot.plan import (
    Again,
    Apart,
    CallPlan,
    Flag,
    LateWrite,
    Layout,
    New,
    Node,
    Recipe,
    Result,
    Same,
    Tangent,
    ViewOfArgument,
    ViewOfValue,
    Whole,
    Write,
)
from treeplay.wrap.aot.torch_private import Traced, is_wrapper, is_written_by_graph

_NEW = ("non_alias", "unsafe_view_alias", "custom_function_view")


def plan_call(
    traced: Traced,
    seen: Seen,
    *,
    samples: Sequence[Any],
    arguments: tuple[str, ...],
    arrangement: Arrangement,
    noted: Noted,
) -> CallPlan:
    """The plan but for its node. `samples` are what the traced function takes in place of the arguments."""
    facts, positions = traced.facts, arrangement.inputs
    plan = CallPlan(arguments, arrangement.copies, None, (), (), (), 0, None, None, positions, arrangement.bases)
    _refuse_written_after_reshaped(traced, seen)
    _refuse_what_is_missing(facts, seen, samples, arguments=[plan.name(at) for at in positions])
    _refuse_reshaped_members(plan, facts, seen, noted)
    _refuse_new_histories(plan, facts, seen, noted)
    writes = _writes(traced, seen, samples, plan)
    return replace(
        plan,
        apart=_apart(plan, samples, facts),
        writes=writes,
        touched=tuple(sorted(_touched(traced, seen, positions) - {write.argument for write in writes})),
        results=_results(traced, seen, len(writes), positions, noted),
        values=len(writes) + len(facts.output_info) + facts.num_intermediate_bases,
        grad_mode_after=seen.grad_mode_after,
        layouts=tuple(sorted(noted.layouts.items())),
    )


def _touched(traced: Traced, seen: Seen, positions: Sequence[int]) -> set[int]:
    """Arguments that the graph writes, or that the program changed and changed back."""
    written = {k for k, info in enumerate(traced.facts.input_info) if is_written_by_graph(info)}
    return {positions[k] for k in seen.touched | written}


def _refuse_new_histories(plan: CallPlan, facts: Any, seen: Seen, noted: Noted) -> None:
    """A write of something that needs a gradient starts a history, here of one tensor in the place of several."""
    for base, info in zip(plan.bases, facts.input_info, strict=False):  # bases come first
        grown = any(member.argument in noted.grown for member in base.members)
        if grown or (base.whole is Whole.FLAT and info.requires_grad):
            one, other = (plan.name(member.argument) for member in base.members[:2])
            told = f"arguments `{one}` and `{other}` share memory, and a write to one of them starts a history"
            raise refusal("write", told, seen.line())


def _refuse_reshaped_members(plan: CallPlan, facts: Any, seen: Seen, noted: Noted) -> None:
    for base, info in zip(plan.bases, facts.input_info, strict=False):
        for member in base.members:
            if member.argument in noted.layouts and info.requires_grad and not member.is_detached:
                # Its history would be that of a tensor with the old shape.
                told = f"`{plan.name(member.argument)}` needs a gradient, and its shape changes in place"
                raise refusal("write", told, seen.line())


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
    if traced.is_joint and seen.reshaped_then_written is not None:
        name, where = seen.reshaped_then_written
        raise refusal(name, "changes a shape in place before a write, where gradients are needed", where)


def _outputs(traced: Traced) -> list[Any]:
    return list(traced.graph.graph.output_node().args[0])  # type: ignore[arg-type]


def _fake(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else node  # numbers that are inputs have none


def _layout(tensor: torch.Tensor) -> Layout:
    numbers = (*tensor.size(), *tensor.stride(), tensor.storage_offset())
    if not all(type(number) is int for number in numbers):
        raise refusal("wrap", "a view or a gradient whose sizes are not known at the trace", None)
    return Layout(tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()))


def _writes(traced: Traced, seen: Seen, samples: Sequence[Any], plan: CallPlan) -> tuple[Write, ...]:
    facts, outputs = traced.facts, _outputs(traced)
    writes = []
    for value, k in enumerate(facts.mutated_inp_runtime_indices):
        info, argument = facts.input_info[k], plan.inputs[k]
        hidden = info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode
        hidden = hidden or is_leaf(samples[k])
        layout = _layout(_fake(outputs[value])) if info.mutates_metadata else None
        if layout is not None and span(_fake(outputs[value]))[1] > samples[k].untyped_storage().nbytes():
            raise refusal("resize_", f"`{plan.name(argument)}` grows beyond its storage", seen.line())
        writes.append(Write(argument, value, info.mutates_data, layout, not hidden, seen.moves_version(k)))
    return tuple(writes)


def _results(traced: Traced, seen: Seen, first: int, positions: Sequence[int], noted: Noted) -> tuple[Result, ...]:
    facts, outputs = traced.facts, _outputs(traced)
    bases = first + len(facts.output_info)
    results: list[Result] = []
    for k, info in enumerate(facts.output_info):
        kind, value = info.output_type.name, first + k
        if k in noted.members:
            results.append(Same(noted.members[k]))
        elif k in seen.again:
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


def _apart(plan: CallPlan, samples: Sequence[Any], facts: Any) -> Apart | None:
    """Written inputs and all other tensors that could share memory with them."""
    tensors = [k for k, sample in enumerate(samples) if isinstance(sample, torch.Tensor)]
    written = [k for k in tensors if facts.input_info[k].mutates_data]
    shaped = [k for k in tensors if facts.input_info[k].mutates_metadata and k not in written]
    for one in written:
        for other in tensors:
            if one != other and overlap(samples[one], samples[other]):
                raise InternalError(f"inputs {one} and {other} of a graph overlap, and the first is written")
    others = [k for k in tensors if k not in written] if written else []
    pairs = {(min(one, other), max(one, other)) for one in shaped for other in tensors if one != other}
    if len(written) + len(others) < 2 and not pairs:
        return None
    places = plan.inputs
    return Apart(
        tuple(places[k] for k in written),
        tuple(places[k] for k in others),
        tuple(sorted((places[one], places[other]) for one, other in pairs if not {one, other} & set(written))),
    )


def plan_node(
    traced: Traced,
    plan: CallPlan,
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule,
    late: tuple[LateWrite, ...],
) -> Node:
    """What the autograd node does, once the joint graph is cut in two."""
    facts = traced.facts
    saved = list(forward.graph.output_node().args[0])[plan.values :]  # type: ignore[arg-type]
    for node in saved:
        if not isinstance(_fake(node), torch.Tensor):
            raise refusal("wrap", "a number that the trace does not know is needed for the backward", None)
    values = _values_with_tangents(facts, plan)
    inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
    now = sum(write.argument is not None for write in late)
    if len(inputs) != len(saved) + len(values) + now:
        raise InternalError(f"the backward has {len(inputs)} inputs, expected {len(saved)} + {len(values)} + {now}")
    arriving = inputs[len(saved) : len(saved) + len(values)]
    tangents = tuple(_tangent(value, _fake(node)) for value, node in zip(values, arriving, strict=True))
    feeds = _feeds(backward, arriving, len(facts.input_info), len(late))
    return Node(
        returned=_returned(plan),
        differentiable=values,
        saved=len(saved),
        unchecked=sum(bool(node.meta.get("saved_tensor_with_no_vc_check")) for node in saved),
        tangents=tangents,
        feeds=feeds,
        groups=() if late else groups_of(backward, len(tangents)),
        detached=tuple(
            plan.inputs[k]
            for k, info in enumerate(facts.input_info)
            if info.requires_grad and not info.is_leaf and feeds[k] is None
        ),
        views=_views(forward, plan),
        copied=_copied(forward, saved, plan),
        late=late,
        donated=_donated(forward, backward, saved, plan),
    )


def _donated(
    forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, saved: Sequence[torch.fx.Node], plan: CallPlan
) -> tuple[int, ...]:
    """Saved values that share memory with no input, no value outside, no gradient and no other saved value."""
    values = list(forward.graph.output_node().args[0])[: plan.values]  # type: ignore[arg-type]
    gradients = list(backward.graph.output_node().args[0])  # type: ignore[arg-type]
    own = [node for node in forward.graph.nodes if node.op == "placeholder"]
    outside = [_fake(node) for node in (*own, *values, *gradients)]
    others = [value for value in outside if isinstance(value, torch.Tensor)]
    arriving = [_fake(node) for node in backward.graph.nodes if node.op == "placeholder"]
    donated = []
    for k, node in enumerate(saved):
        value, twin = _fake(node), arriving[k]  # the two graphs may have fakes of their own
        rest = [_fake(other) for at, other in enumerate(saved) if at != k]
        is_shared = any(
            torch_private.shares_storage(item, other) for item in (value, twin) for other in (*others, *rest)
        )
        is_checked = not node.meta.get("saved_tensor_with_no_vc_check")
        if is_checked and not is_shared and value.layout is torch.strided:
            donated.append(k)
    return tuple(donated)


def _views(forward: torch.fx.GraphModule, plan: CallPlan) -> tuple[int, ...]:
    """Results made as views of what nobody else sees: they leave the node as tensors of their own."""
    values = list(forward.graph.output_node().args[0])  # type: ignore[arg-type]
    new = {result.value for result in plan.results if isinstance(result, New)}
    return tuple(k for k, node in enumerate(values) if k in new and isinstance(node, torch.fx.Node) and _is_view(node))


def _is_view(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(returned.alias_info is not None for returned in schema.returns)


def _copied(forward: torch.fx.GraphModule, saved: Sequence[torch.fx.Node], plan: CallPlan) -> tuple[int, ...]:
    """Saved values that lie in an argument which is written after the graph.

    A graph that computes something again in the backward may save an argument that eager would not have saved. What
    the call writes to it must neither change the saved value nor make it look outdated."""
    written = {write.argument for write in plan.writes if write.has_data}
    inputs = [node for node in forward.graph.nodes if node.op == "placeholder"]
    fakes = [_fake(node) for node, argument in zip(inputs, plan.inputs, strict=False) if argument in written]
    targets = [value for value in fakes if isinstance(value, torch.Tensor)]
    return tuple(
        k
        for k, node in enumerate(saved)
        if any(torch_private.shares_storage(_fake(node), target) for target in targets)
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
    backward: torch.fx.GraphModule, tangents: Sequence[torch.fx.Node], arguments: int, late: int
) -> tuple[tuple[int, ...] | None, ...]:
    """From which tangents each gradient comes: reachability in the backward graph."""
    reach: dict[torch.fx.Node, frozenset[int]] = {node: frozenset([k]) for k, node in enumerate(tangents)}
    for node in backward.graph.nodes:
        if node.op != "output" and node not in reach:
            reach[node] = frozenset().union(*(reach[source] for source in node.all_input_nodes))
    gradients = list(backward.graph.output_node().args[0])  # type: ignore[arg-type]
    if len(gradients) != arguments + late:
        raise InternalError(f"the backward gives {len(gradients)} values, expected {arguments} + {late}")
    return tuple(tuple(sorted(reach[node])) if node is not None else None for node in gradients[:arguments])
