"""The facts that torch's tracing found → a `CallPlan` but for its node, or a refusal of what cannot be done yet."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from treeplay.errors import InternalError
from treeplay.torch_seam import fakes as torch_fakes
from treeplay.torch_seam.aot import Traced, is_new, is_written_by_graph
from treeplay.torch_seam.modes import is_wrapper
from treeplay.values.layout import Layout
from treeplay.values.memory import Extent, view_of
from treeplay.values.output import Fresh, Result, SameAsInput, SameAsOutput, View
from treeplay.values.spec import TensorSpec
from treeplay.wrap.aot.compilers import Compilers
from treeplay.wrap.aot.plan.arrange import Arrangement, RunNotes
from treeplay.wrap.aot.plan.facts import ArgumentWrite, CallPlan, CommonBase, NoOverlap
from treeplay.wrap.aot.plan.layouts import counts_from_the_start, fake_value, known_layout, layout_from, new_layouts
from treeplay.wrap.aot.plan.overlap import is_folded, length, overlap, overlap_across_storages
from treeplay.wrap.aot.plan.subclass_rules import refuse_unsupported_view
from treeplay.wrap.aot.plan.subclasses import value_fakes, wrappers_of
from treeplay.wrap.aot.tracing.findings import TraceFindings, is_differentiable_leaf, refusal_to_wrap


def plan_call(
    traced: Traced,
    seen: TraceFindings,
    *,
    samples: Sequence[Any],
    arguments: tuple[str, ...],
    arrangement: Arrangement,
    noted: RunNotes,
    compilers: Compilers,
) -> CallPlan:
    """The plan but for its node. `samples` are what the traced function takes in place of the arguments."""
    facts, positions = traced.facts, arrangement.inputs
    plan = CallPlan(arguments, arrangement.copies, None, (), (), (), 0, None, None, positions, arrangement.bases)
    if len(facts.input_info) != len(samples):
        raise refusal_to_wrap("write", "two arguments share memory, and one of them is written", seen.line())
    names = [plan.name(at) for at in positions]
    layouts = new_layouts(facts, seen, samples, names)
    _refuse_written_after_reshaped(traced, seen, layouts)
    _refuse_what_is_missing(facts, seen, samples, names=names)
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
        begins=_begins(samples, seen, positions, {*layouts}),
        opened=wrappers_of(traced),
        is_guarded=compilers.is_guarded,
        tokens=len(facts.tokens),
    )


def _begins(
    samples: Sequence[Any], seen: TraceFindings, positions: Sequence[int], reshaped: set[int]
) -> tuple[tuple[int, int], ...]:
    absolute = sorted(k for k in reshaped if counts_from_the_start(seen.reshaped[k].steps))
    return tuple((positions[k], int(samples[k].storage_offset())) for k in absolute)


def _touched(traced: Traced, seen: TraceFindings, positions: Sequence[int]) -> set[int]:
    """Arguments that the graph writes, or that the program changed and changed back."""
    written = {k for k, info in enumerate(traced.facts.input_info) if is_written_by_graph(info)}
    return {positions[k] for k in seen.touched | written}


def _refuse_new_histories(plan: CallPlan, facts: Any, seen: TraceFindings, noted: RunNotes) -> None:
    """Refuse a write that starts a history: here it would be that of one tensor in the place of several."""
    for base, info in zip(plan.bases, facts.input_info, strict=False):  # bases come first
        grown = any(member.argument in noted.grown for member in base.members)
        if grown or (base.whole is CommonBase.FLAT and info.requires_grad):
            one, other = (plan.name(member.argument) for member in base.members[:2])
            told = f"arguments `{one}` and `{other}` share memory, and a write to one of them starts a history"
            raise refusal_to_wrap("write", told, seen.line())


def _refuse_what_is_missing(facts: Any, seen: TraceFindings, samples: Sequence[Any], *, names: Sequence[str]) -> None:
    for name, sample, info in zip(names, samples, facts.input_info, strict=True):
        tracked = not (info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode)
        if info.mutates_storage_metadata or info.mutation_inductor_storage_resize:
            raise refusal_to_wrap("write", f"the storage of argument `{name}` is replaced or resized", seen.line())
        if info.mutates_data and is_folded(sample):
            raise refusal_to_wrap(
                "write", f"argument `{name}` is written, and its own elements share memory", seen.line()
            )
        if info.mutates_data and is_differentiable_leaf(sample) and tracked and not seen.writes:
            # Nobody saw how it was done, so nobody can tell whether eager would have raised.
            raise refusal_to_wrap("write", f"leaf argument `{name}` is written, and it needs a gradient", None)
    for name, where in seen.writes:
        if name in ("requires_grad_", "detach_", "share_memory_"):
            raise refusal_to_wrap(name, "changes how autograd sees a tensor, which a trace does not keep", where)


def _refuse_written_after_reshaped(traced: Traced, seen: TraceFindings, layouts: dict[int, Layout]) -> None:
    """Torch's trace gives a view taken before `t_` a transposed gradient of a write that comes after it, and loses that of a
    write under no_grad."""
    needs_grad = traced.is_joint or any(traced.facts.input_info[k].requires_grad for k in layouts)
    if needs_grad and seen.reshaped_then_written is not None:
        name, where = seen.reshaped_then_written
        raise refusal_to_wrap(name, "changes a shape in place before a write, where gradients are needed", where)


def _outputs(traced: Traced) -> list[Any]:
    """What the graph returns but for its tokens."""
    return list(traced.graph.graph.output_node().args[0])[len(traced.facts.tokens) :]  # type: ignore[arg-type]


def _argument_fake(traced: Traced, k: int) -> Any:
    """The wrapper of fakes that stood for an argument; None for a plain one."""
    return getattr(traced.facts.subclass_inp_meta[k], "original_subclass", None) if traced.subclasses else None


def _writes(
    traced: Traced, seen: TraceFindings, samples: Sequence[Any], *, plan: CallPlan, layouts: dict[int, Layout]
) -> tuple[ArgumentWrite, ...]:
    facts = traced.facts
    writes = []
    for value, k in enumerate(facts.mutated_inp_runtime_indices):
        info, argument = facts.input_info[k], plan.inputs[k]
        if info.mutates_data and info.mutations_under_no_grad_or_inference_mode and info.requires_grad and k in layouts:
            # A change of shape gives it another history, and so may a custom function have done.
            told = (
                f"`{plan.name(argument)}` needs a gradient, and its shape changes in place beside a write under no_grad"
            )
            raise refusal_to_wrap("write", told, seen.line())
        # Torch takes what a custom function writes for a write under no_grad, also where it gives the argument a history.
        is_unseen = info.mutations_under_no_grad_or_inference_mode and k not in seen.rebased
        hidden = info.mutations_hidden_from_autograd or is_unseen or is_differentiable_leaf(samples[k])
        writes.append(
            ArgumentWrite(argument, value, info.mutates_data, layouts.get(k), not hidden, seen.moves_version(k))
        )
    return tuple(writes)


def _results(
    traced: Traced,
    seen: TraceFindings,
    samples: Sequence[Any],
    *,
    positions: Sequence[int],
    noted: RunNotes,
    layouts: dict[int, Layout],
) -> tuple[Result, ...]:
    facts, fakes = traced.facts, value_fakes(traced, [fake_value(node) for node in _outputs(traced)])
    first = len(facts.mutated_inp_runtime_indices)
    bases = first + len(facts.output_info)
    results: list[Result] = []
    for k, info in enumerate(facts.output_info):
        kind, value = info.output_type.name, first + k
        if k in noted.members:
            results.append(SameAsInput(noted.members[k]))
        elif k in seen.again:
            results.append(SameAsOutput(seen.again[k]))
        elif seen.own.get(k) in seen.rebased:  # torch takes what a custom function marked as changed for a new tensor
            results.append(SameAsInput(positions[seen.own[k]]))
        elif is_new(info):
            results.append(Fresh(value))
        elif kind == "is_input":
            results.append(SameAsInput(positions[info.base_idx]))
        elif kind == "alias_of_input":
            needs = facts.input_info[info.base_idx].requires_grad
            if needs and info.base_idx in layouts:
                raise refusal_to_wrap("view", "a result views an argument whose shape changes in place", seen.line())
            of, base, layout = SameAsInput(positions[info.base_idx]), samples[info.base_idx], known_layout(fakes[value])
            steps = _steps(info.view_meta_sequence)
            taken = seen.results[k]
            if taken is not None and taken.steps is not None and (info.base_idx in layouts or steps is None):
                # The steps lead from the shape that the argument had.
                steps, layout = None, layout_from(samples[info.base_idx], taken.steps)
            refuse_unsupported_view(_argument_fake(traced, info.base_idx), fakes[value], k)
            results.append(_view(of, base, fakes[value], layout, steps=steps, info=info, base_needs_grad=needs))
        else:
            is_result = kind == "alias_of_intermediate_base_is_user_output"
            place = (first if is_result else bases) + info.base_idx
            base, layout = fakes[place], known_layout(fakes[value])
            needs = facts.output_info[info.base_idx].requires_grad if is_result else traced.is_joint
            refuse_unsupported_view(base, fakes[value], k)
            steps = _steps(info.view_meta_sequence)
            if is_result and not _leads_from(base, info.view_meta_sequence, fakes[value]):
                steps = None  # the result that is the base is itself a view of what was noted
            results.append(
                _view(Fresh(place), base, fakes[value], layout, steps=steps, info=info, base_needs_grad=needs)
            )
    return tuple(
        replace(result, with_gradients=seen.grad_modes.get(k)) if isinstance(result, View) else result
        for k, result in enumerate(results)
    )


def _leads_from(base: Any, sequence: Any, view: Any) -> bool:
    """Whether the noted view steps, taken from `base`, give what lies as `view` does."""
    if sequence is None or any(step.has_symbolic_inputs for step in sequence.sequence):
        return False
    try:
        made = torch_fakes.apply_views(base, sequence.sequence)
    except RuntimeError:  # they do not fit its shape
        return False
    return (made.size(), made.stride(), made.storage_offset()) == (view.size(), view.stride(), view.storage_offset())


def _view(
    of: Fresh | SameAsInput,
    base: torch.Tensor,
    view: torch.Tensor,
    layout: Layout,
    *,
    steps: bytes | None,
    info: Any,
    base_needs_grad: bool,
) -> View:
    """The reference to `view`, which lies so in the storage of `base`."""
    noted = info.view_meta_sequence.sequence if info.view_meta_sequence is not None else ()
    if info.requires_grad and any(type(step).__name__.startswith("detach") for step in noted):
        raise refusal_to_wrap(
            "detach", "a detached view of an argument got a history of its own, and is a result", None
        )
    found = view_of(of, _extent(base, known_layout(base)), _extent(view, layout))
    if found is None and steps is None:
        why = "a result of another dtype reads memory that lies outside of the tensor it is a view of"
        raise refusal_to_wrap("view", why, None)
    found = View(of, layout) if found is None else found
    is_detached, is_leaf = base_needs_grad and not info.requires_grad, info.requires_grad and not base_needs_grad
    return replace(found, is_detached=is_detached, requires_grad=is_leaf, steps=steps)


def _extent(tensor: torch.Tensor, layout: Layout) -> Extent:
    spec = TensorSpec(layout.shape, layout.stride, tensor.dtype, tensor.device)
    return Extent(None, None, 0, layout.offset * spec.dtype.itemsize, spec)


def _steps(sequence: Any) -> bytes | None:
    if sequence is None or any(step.has_symbolic_inputs for step in sequence.sequence):
        return None
    try:
        return pickle.dumps(sequence.sequence)
    except Exception:  # an older torch, whose view steps are not data
        return None


def _apart(
    plan: CallPlan, samples: Sequence[Any], facts: Any, seen: TraceFindings, *, shaped: set[int]
) -> NoOverlap | None:
    """Written inputs and all other tensors that could share memory with them."""
    tensors = [k for k, sample in enumerate(samples) if isinstance(sample, torch.Tensor)]
    names = [plan.name(k) for k in plan.inputs]
    written = [k for k in tensors if facts.input_info[k].mutates_data]
    for one in written:
        for other in tensors:
            if one != other and overlap_across_storages(samples[one], samples[other]):
                told = f"arguments `{names[one]}` and `{names[other]}` share memory that is no one storage of torch's"
                raise refusal_to_wrap(
                    "write", f"{told}, as that of a NumPy array, and the first is written", seen.line()
                )
            if one == other or not overlap(samples[one], samples[other]):
                continue
            if is_wrapper(samples[one]) or is_wrapper(samples[other]):  # which have no common base
                told = f"arguments `{names[one]}` and `{names[other]}` share memory, and the first is written"
                raise refusal_to_wrap("write", told, seen.line())
            raise InternalError(f"inputs {one} and {other} of a graph overlap, and the first is written")
    others = [k for k in tensors if k not in written] if written else []
    pairs = {(min(one, other), max(one, other)) for one in shaped - {*written} for other in tensors if one != other}
    if len(written) + len(others) < 2 and not pairs:
        return None
    inputs = plan.inputs
    return NoOverlap(
        tuple(inputs[k] for k in written),
        tuple(inputs[k] for k in others),
        tuple(_length(samples[k]) for k in (*written, *others)),
        tuple(sorted((inputs[one], inputs[other]) for one, other in pairs if not {one, other} & set(written))),
    )


def _length(sample: torch.Tensor) -> int | None:
    """How many bytes a tensor spans; None for one made of others, or of another kind of memory."""
    if is_wrapper(sample) or sample.layout is not torch.strided:
        return None
    return length(sample)
