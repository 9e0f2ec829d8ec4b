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
from treeplay.wrap.aot.compilers import Compilers
from treeplay.wrap.aot.layouts import known_layout, layout_from, new_layouts
from treeplay.wrap.aot.overlap import overlap
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
    WrappedTangent,
    Write,
)
from treeplay.wrap.aot.random_states import generator_inputs, refuse_unsupported_random
from treeplay.wrap.aot.subclass_rules import refuse_unsupported_view
from treeplay.wrap.aot.subclasses import Wrapper, opened, places, tangent_wrappers, value_fakes, width
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
    compilers: Compilers,
) -> CallPlan:
    """The plan but for its node. `samples` are what the traced function takes in place of the arguments."""
    facts, positions = traced.facts, arrangement.inputs
    plan = CallPlan(arguments, arrangement.copies, None, (), (), (), 0, None, None, positions, arrangement.bases)
    _refuse_written_after_reshaped(traced, seen)
    if len(facts.input_info) != len(samples):
        raise refusal("write", "two arguments share memory, and one of them is written", seen.line())
    layouts = new_layouts(facts, seen, samples, names := [plan.name(at) for at in positions])
    _refuse_what_is_missing(facts, seen, samples, names=names, layouts=layouts)
    if compilers.functional_random:
        refuse_unsupported_random(traced)
    _refuse_reshaped_members(plan, facts, seen, noted)
    _refuse_new_histories(plan, facts, seen, noted)
    writes = _writes(traced, seen, samples, plan=plan, layouts=layouts)
    return replace(
        plan,
        apart=_apart(plan, samples, facts, seen, shaped={*seen.reshaped, *arrangement.aliased}),
        writes=writes,
        touched=tuple(sorted(_touched(traced, seen, positions) - {write.argument for write in writes})),
        results=_results(traced, seen, samples, positions=positions, noted=noted, layouts=layouts),
        values=len(writes) + len(facts.output_info) + facts.num_intermediate_bases,
        grad_mode_after=seen.grad_mode_after,
        layouts=tuple(sorted(noted.layouts.items())),
        opened=opened(traced),
        is_guarded=compilers.is_guarded,
        tokens=len(facts.tokens),
        has_functional_random=compilers.functional_random,
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


def _refuse_what_is_missing(
    facts: Any, seen: Seen, samples: Sequence[Any], *, names: Sequence[str], layouts: dict[int, Layout]
) -> None:
    for k, (name, sample, info) in enumerate(zip(names, samples, facts.input_info, strict=True)):
        tracked = not (info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode)
        if info.mutates_storage_metadata or info.mutation_inductor_storage_resize:
            raise refusal("write", f"the storage of argument `{name}` is replaced or resized", seen.line())
        if k in layouts and info.requires_grad and (info.mutates_data or sample._is_view()):
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
    """What the graph returns but for its tokens."""
    return list(traced.graph.graph.output_node().args[0])[len(traced.facts.tokens) :]  # type: ignore[arg-type]


def _value_fakes(traced: Traced) -> list[Any]:
    return value_fakes(traced, [_fake(node) for node in _outputs(traced)])


def _argument_fake(traced: Traced, k: int) -> Any:
    """The wrapper of fakes that stood for an argument; None for a plain one."""
    return getattr(traced.facts.subclass_inp_meta[k], "original_subclass", None) if traced.subclasses else None


def _fake(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else node  # numbers that are inputs have none


def _writes(
    traced: Traced, seen: Seen, samples: Sequence[Any], *, plan: CallPlan, layouts: dict[int, Layout]
) -> tuple[Write, ...]:
    facts = traced.facts
    writes = []
    for value, k in enumerate(facts.mutated_inp_runtime_indices):
        info, argument = facts.input_info[k], plan.inputs[k]
        hidden = info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode
        hidden = hidden or is_leaf(samples[k])
        writes.append(Write(argument, value, info.mutates_data, layouts.get(k), not hidden, seen.moves_version(k)))
    return tuple(writes)


def _results(
    traced: Traced,
    seen: Seen,
    samples: Sequence[Any],
    *,
    positions: Sequence[int],
    noted: Noted,
    layouts: dict[int, Layout],
) -> tuple[Result, ...]:
    facts, fakes = traced.facts, _value_fakes(traced)
    first = len(facts.mutated_inp_runtime_indices)
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
            if needs and info.base_idx in layouts:
                raise refusal("view", "a result views an argument whose shape changes in place", seen.line())
            recipe = _recipe(info, fakes[value], base_needs_grad=needs)
            taken = seen.results[k]
            if taken is not None and taken.steps is not None and (info.base_idx in layouts or recipe.steps is None):
                # The steps lead from the shape that the argument had.
                recipe = replace(recipe, steps=None, layout=layout_from(samples[info.base_idx], taken.steps))
            refuse_unsupported_view(_argument_fake(traced, info.base_idx), fakes[value], k)
            results.append(ViewOfArgument(positions[info.base_idx], recipe))
        else:
            is_result = kind == "alias_of_intermediate_base_is_user_output"
            base = (first if is_result else bases) + info.base_idx
            needs = facts.output_info[info.base_idx].requires_grad if is_result else traced.is_joint
            refuse_unsupported_view(fakes[base], fakes[value], k)
            recipe = _recipe(info, fakes[value], base_needs_grad=needs)
            if is_result and not _leads_from(fakes[base], info.view_meta_sequence, fakes[value]):
                recipe = replace(recipe, steps=None)  # the result that is the base is itself a view of what was noted
            results.append(ViewOfValue(base, recipe))
    return tuple(results)


def _leads_from(base: Any, sequence: Any, view: Any) -> bool:
    """Whether the noted view steps, taken from `base`, give what lies as `view` does."""
    if sequence is None or any(step.has_symbolic_inputs for step in sequence.sequence):
        return False
    try:
        made = torch_private.apply_views(base, sequence.sequence)
    except RuntimeError:  # they do not fit its shape
        return False
    return (made.size(), made.stride(), made.storage_offset()) == (view.size(), view.stride(), view.storage_offset())


def _recipe(info: Any, view: torch.Tensor, *, base_needs_grad: bool) -> Recipe:
    flag = Flag.KEEP
    steps = info.view_meta_sequence.sequence if info.view_meta_sequence is not None else ()
    if info.requires_grad and any(type(step).__name__.startswith("detach") for step in steps):
        raise refusal("detach", "a detached view of an argument got a history of its own, and is a result", None)
    if base_needs_grad and not info.requires_grad:
        flag = Flag.DETACH
    elif info.requires_grad and not base_needs_grad:
        flag = Flag.REQUIRE
    return Recipe(_steps(info.view_meta_sequence), known_layout(view), flag)


def _steps(sequence: Any) -> bytes | None:
    if sequence is None or any(step.has_symbolic_inputs for step in sequence.sequence):
        return None
    try:
        return pickle.dumps(sequence.sequence)
    except Exception:  # an older torch, whose view steps are not data
        return None


def _apart(plan: CallPlan, samples: Sequence[Any], facts: Any, seen: Seen, *, shaped: set[int]) -> Apart | None:
    """Written inputs and all other tensors that could share memory with them."""
    tensors = [k for k, sample in enumerate(samples) if isinstance(sample, torch.Tensor)]
    names = [plan.name(k) for k in plan.inputs]
    written = [k for k in tensors if facts.input_info[k].mutates_data]
    for one in written:
        for other in tensors:
            if one == other or not overlap(samples[one], samples[other]):
                continue
            if is_wrapper(samples[one]) or is_wrapper(samples[other]):  # which have no common base
                told = f"arguments `{names[one]}` and `{names[other]}` share memory, and the first is written"
                raise refusal("write", told, seen.line())
            raise InternalError(f"inputs {one} and {other} of a graph overlap, and the first is written")
    others = [k for k in tensors if k not in written] if written else []
    pairs = {(min(one, other), max(one, other)) for one in shaped - {*written} for other in tensors if one != other}
    if len(written) + len(others) < 2 and not pairs:
        return None
    inputs = plan.inputs
    return Apart(
        tuple(inputs[k] for k in written),
        tuple(inputs[k] for k in others),
        tuple(sorted((inputs[one], inputs[other]) for one, other in pairs if not {one, other} & set(written))),
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
    saved = list(forward.graph.output_node().args[0])[plan.returned_values :]  # type: ignore[arg-type]
    for node in saved:
        if not isinstance(_fake(node), torch.Tensor):
            raise refusal("wrap", "a number that the trace does not know is needed for the backward", None)
    values = _values_with_tangents(facts, plan)
    wrappers = tangent_wrappers(traced, len(values))
    inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
    groups = [inputs[at.start : at.stop] for at in places(wrappers, len(saved))]
    arriving = sum(map(len, groups))
    devices = [str(generator.device) for generator in generator_inputs(forward)]
    tokens = facts.num_backward_tokens
    now = sum(write.argument is not None for write in late)
    others = now + tokens + 2 * plan.has_functional_random + len(devices)
    if len(inputs) != len(saved) + arriving + others:
        raise InternalError(f"the backward has {len(inputs)} inputs, expected {len(saved)} + {arriving} + {others}")
    feeds = _feeds(backward, groups, plan, facts, late=len(late))
    # Only where gradients, one input each, come last is there a backward for some of them.
    is_whole = plan.opened is not None or others > 0 or bool(late)
    return Node(
        returned=_returned(plan),
        differentiable=values,
        saved=len(saved),
        unchecked=_unchecked(saved),
        tangents=tuple(_tangent(*parts) for parts in zip(values, wrappers, groups, strict=True)),
        feeds=feeds,
        groups=() if is_whole else groups_of(backward, len(values)),
        is_whole=is_whole,
        detached=tuple(
            plan.inputs[k]
            for k, info in enumerate(facts.input_info)
            if info.requires_grad and not info.is_leaf and feeds[k] is None and not _is_opened(plan, k)
        ),
        views=_views(forward, plan),
        copied=_copied(forward, saved, plan),
        late=late,
        donated=_donated(forward, backward, saved, plan),
        generators=tuple(devices),
        tokens=tokens,
        is_deterministic=bool(facts.deterministic),
    )


def _donated(
    forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, saved: Sequence[torch.fx.Node], plan: CallPlan
) -> tuple[int, ...]:
    """Saved values that share memory with no input, no value outside, no gradient and no other saved value."""
    values = list(forward.graph.output_node().args[0])[: plan.returned_values]  # type: ignore[arg-type]
    gradients = list(backward.graph.output_node().args[0])  # type: ignore[arg-type]
    own = [node for node in forward.graph.nodes if node.op == "placeholder"]
    outside = [_fake(node) for node in (*own, *values, *gradients)]
    others = [value for value in outside if isinstance(value, torch.Tensor)]
    arriving = [_fake(node) for node in backward.graph.nodes if node.op == "placeholder"]
    donated = []
    for k, node in enumerate(saved[: len(saved) - _unchecked(saved)]):
        value, twin = _fake(node), arriving[k]  # the two graphs may have fakes of their own
        rest = [_fake(other) for at, other in enumerate(saved) if at != k]
        is_shared = any(
            torch_private.shares_storage(item, other) for item in (value, twin) for other in (*others, *rest)
        )
        if not is_shared and value.layout is torch.strided:
            donated.append(k)
    return tuple(donated)


def _views(forward: torch.fx.GraphModule, plan: CallPlan) -> tuple[int, ...]:
    """Results made as views of what nobody else sees: they leave the node as tensors of their own."""
    outputs = list(forward.graph.output_node().args[0])  # type: ignore[arg-type]
    nodes = [outputs[at.start] if len(at) == 1 else None for at in plan.places_of_values()]
    new = {result.value for result in plan.results if isinstance(result, New)}
    new -= {k for k, wrapper in enumerate(plan.opened.values if plan.opened is not None else ()) if wrapper is not None}
    return tuple(k for k, node in enumerate(nodes) if k in new and isinstance(node, torch.fx.Node) and _is_view(node))


def _is_view(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(returned.alias_info is not None for returned in schema.returns)


def _copied(forward: torch.fx.GraphModule, saved: Sequence[torch.fx.Node], plan: CallPlan) -> tuple[int, ...]:
    """Saved values that lie in an argument which is written after the graph.

    A graph that computes something again in the backward may save an argument that eager would not have saved. What
    the call writes to it must neither change the saved value nor make it look outdated."""
    written = {write.argument for write in plan.writes if write.has_data}
    inputs = [node for node in forward.graph.nodes if node.op == "placeholder"]
    lying = zip(plan.places_of_inputs(), plan.inputs, strict=True)
    fakes = [_fake(inputs[k]) for at, argument in lying if argument in written for k in at]
    targets = [value for value in fakes if isinstance(value, torch.Tensor)]
    return tuple(
        k
        for k, node in enumerate(saved)
        if any(torch_private.shares_storage(_fake(node), target) for target in targets)
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
        parts.append(Tangent(value, known_layout(fake), str(fake.dtype), str(fake.device)))
    return parts[0] if wrapper is None else WrappedTangent(value, wrapper, tuple(parts))


def _feeds(
    backward: torch.fx.GraphModule,
    tangents: Sequence[Sequence[torch.fx.Node]],
    plan: CallPlan,
    facts: Any,
    *,
    late: int,
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
    others = late + facts.num_backward_tokens + plan.has_functional_random
    if len(gradients) != expected + others or len(wrappers) != arguments:
        raise InternalError(f"the backward gives {len(gradients)} values, expected {expected} + {others}")
    feeds: list[tuple[int, ...] | None] = []
    for at in places(wrappers, 0):
        nodes = [node for node in gradients[at.start : at.stop] if isinstance(node, torch.fx.Node)]
        feeds.append(tuple(sorted(frozenset().union(*(reach[node] for node in nodes)))) if nodes else None)
    return tuple(feeds)
