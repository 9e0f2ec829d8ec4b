"""`CallPlan` and its `NodePlan` → source of the node's forward and backward. Pure, as the call function's."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.codegen import Source, Writer, list_of, tuple_of
from treeplay.torch_seam import aot, autograd, flags, modes
from treeplay.values.block import SavedLayout
from treeplay.wrap.aot import block, opening, surroundings
from treeplay.wrap.aot import emit_subclasses as subclasses
from treeplay.wrap.aot import node as helpers
from treeplay.wrap.aot.differentiated import differentiated, differentiated_again, late_write
from treeplay.wrap.aot.emit_text import count_values, run_graph, tokens
from treeplay.wrap.aot.kept import past_of, versions_of
from treeplay.wrap.aot.node import Needs
from treeplay.wrap.aot.plan import CallPlan, KeptInputs, NodePlan, Tangent, WrappedTangent
from treeplay.wrap.aot.random_states import RecomputeGenerators, draw_seeds
from treeplay.wrap.aot.redrawn import states_before
from treeplay.wrap.aot.saved_values import saved_of


def emit_forward(
    plan: CallPlan,
    node: NodePlan,
    run: Callable[..., Any],
    needs: Needs,
    *,
    is_boxed: bool = True,
) -> Source:
    """The node's forward: runs the graph, saves for the backward, marks what needs no gradient."""
    text = Writer()
    given = [plan.name(k) for k in plan.inputs]
    with text.block(f"def forward(ctx, {', '.join(given)}):"):
        _forward(text, plan, node, run, needs, given, is_boxed=is_boxed)
    return text.source("node forward", entry="forward")


def _forward(
    text: Writer,
    plan: CallPlan,
    node: NodePlan,
    run: Callable[..., Any],
    needs: Needs,
    given: Sequence[str],
    *,
    is_boxed: bool,
) -> None:
    text.use("run", run)
    text.use("needs", weakref.ref(needs))
    text.add("ctx.needs = needs()")
    count = plan.returned_values + node.saved
    later = [plan.name(write.argument) for write in node.late if write.argument is not None]
    if later:
        text.add(f"ctx.later = {tuple_of(later)}")
    if node.inputs is not None:
        _keep_inputs(text, node.inputs, given)
    if node.draws:
        text.use("states_before", states_before)
        devices = text.use("devices", tuple(dict.fromkeys(draw.device for draw in node.draws)))
        text.add(f"ctx.states = states_before({devices})")
    text.add(f"args = {subclasses.open_arguments(plan, given) or list_of(given)}", f"del {', '.join(given)}")
    if plan.tokens:
        text.add(f"args[:0] = {tokens(plan.tokens)}")
    if node.generators:
        text.use("generators", RecomputeGenerators(node.generators))
        text.use("draw_seeds", draw_seeds)
        text.add(f"ctx.seeds = draw_seeds({len(node.generators)})", "args += generators.seeded(ctx.seeds)")
    text.add(f"try: values = {run_graph(text, is_boxed=is_boxed)}", "finally: args.clear()")
    if node.inner:
        _save_block(text, plan, node)
        with text.block("else:"):
            _save_apart(text, plan, node, count)
    else:
        _save_apart(text, plan, node, count)
    subclasses.rebuild_values(text, plan, node.returned)
    for k in node.views:
        text.add(f"view{k} = {subclasses.value(plan, k)}.detach()")
    value = {k: f"view{k}" if k in node.views else subclasses.value(plan, k) for k in node.returned}
    plain = [value[k] for k in node.returned if k not in node.differentiable]
    if plain:
        text.use("Tensor", torch.Tensor)
        marked = ", ".join(f"*(({value},) if isinstance({value}, Tensor) else ())" for value in plain)
        text.add(f"ctx.mark_non_differentiable({marked})")
    text.add("ctx.set_materialize_grads(False)")
    text.add(f"return {tuple_of(value[k] for k in node.returned)}")


def _keep_inputs(text: Writer, kept: KeptInputs, names: Sequence[str]) -> None:
    """Keep what derivatives of the backward are computed from."""
    text.use("ref", weakref.ref)
    replaced = {*kept.copied, *kept.past, *(k for k, _ in kept.saved)}
    items = ["None" if k in replaced else name if k in kept.held else f"ref({name})" for k, name in enumerate(names)]
    text.add(f"ctx.given = {tuple_of(items)}")
    if kept.versioned:
        text.use("versions_of", versions_of)
        versioned = [names[k] for k in kept.versioned]
        text.add(f"try: ctx.versions = {list_of(f'{name}._version' for name in versioned)}")
        text.add(f"except RuntimeError: ctx.versions = versions_of({', '.join(versioned)})")
    else:
        text.add("ctx.versions = ()")
    if kept.copied:
        text.add(f"ctx.copies = {tuple_of(f'{names[k]}.clone()' for k in kept.copied)}")
    if kept.past:
        text.use("past_of", past_of)
        text.add(f"ctx.past = {tuple_of(f'past_of({names[k]})' for k in kept.past)}")


def _save_block(text: Writer, plan: CallPlan, node: NodePlan) -> None:
    """Lines for values of which some lie in one block: autograd keeps that as one of the tensors it saves, so it goes when the
    last backward that may want it has run, or never will. Hooks of the user's see each value by itself."""
    text.use("SavedLayout", SavedLayout)
    text.use("saving_hooks", autograd.saving_hooks)
    text.use("opened", block.opened)
    first = plan.returned_values + node.first_inner
    text.add("is_list = type(values) is list and len(values) > 0")
    text.add("ctx.layout = values.pop() if is_list and type(values[-1]) is SavedLayout else None")
    with text.block("if ctx.layout is not None and saving_hooks(False) is not None:"):
        text.add(f"values = opened(values, ctx.layout, {first})", "ctx.layout = None")
    with text.block("if ctx.layout is not None:"):
        if plan.tokens:
            text.add(f"values = values[{plan.tokens}:]")
        begin = first - plan.tokens
        end = f"len(values) - {node.unchecked}" if node.unchecked else ""
        others = [_saved_value(plan, node, k) for k in range(node.first_inner)]
        text.add(f"ctx.save_for_backward({', '.join([*others, f'*values[{begin}:{end}]'])})")
        if node.unchecked:
            unchecked = range(node.saved - node.unchecked, node.saved)
            places = [_saved_value(plan, node, k, at=f"values[{k - node.saved}]") for k in unchecked]
            text.add(f"ctx.unchecked = {list_of(places)}")


def _save_apart(text: Writer, plan: CallPlan, node: NodePlan, count: int) -> None:
    """Lines for values each of which is a tensor of its own."""
    count_values(text, count)
    if plan.tokens:
        text.add(f"values = values[{plan.tokens}:]")
    saved = [_saved_value(plan, node, k) for k in range(node.saved)]
    checked = saved[: len(saved) - node.unchecked]
    unchecked = saved[len(saved) - node.unchecked :]
    if checked:
        text.add(f"ctx.save_for_backward({', '.join(checked)})")
    if unchecked:
        text.add(f"ctx.unchecked = {list_of(unchecked)}")


def _saved_value(plan: CallPlan, node: NodePlan, k: int, *, at: str | None = None) -> str:
    """What is saved holds no history: a view would keep that of what it views."""
    place = at or f"values[{plan.returned_values - plan.tokens + k}]"
    if k in node.copied:
        return f"{place}.clone()"
    return place if k in node.fresh else f"{place}.detach() if {place}._is_view() else {place}"


def emit_backward(plan: CallPlan, node: NodePlan, needs: Needs) -> Source:
    """The node's backward: gradients in the expected layout, the graph, and a gradient only where eager has one.

    What it calls it finds in `ctx.needs`."""
    text = Writer()
    with text.block("def backward(ctx, *grads):"):
        _backward(text, plan, node, needs)
    return text.source("node backward", entry="backward")


def _backward(text: Writer, plan: CallPlan, node: NodePlan, needs: Needs) -> None:
    text.use("is_grad_enabled", torch.is_grad_enabled)
    text.use("differentiated", differentiated)
    arriving = {tangent.value: f"grad{k}" for k, tangent in enumerate(node.tangents)}
    names = [arriving.get(value, f"unused{value}") for value in node.returned]
    _refuse_surroundings(text, node)
    if aot.GRADIENTS_COME_IN_A_LIST:  # but for compiled autograd's
        text.add("grads = grads[0] if type(grads[0]) is list else [*grads]")
    if plan.opened is not None:
        text.use("differentiated_again", differentiated_again)
        text.add("if is_grad_enabled(): return differentiated_again(ctx, grads)")
    elif needs.onward is not None:
        text.add("if is_grad_enabled() and (found := ctx.needs.onward(ctx, grads)) is not None: return found")
    # Autograd's own reference to each gradient must go too, so that it can die inside the graph.
    text.unpack(names, "grads")
    text.add("grads.clear()" if aot.GRADIENTS_COME_IN_A_LIST else "del grads")
    _refuse_late(text, node)
    parts: list[str] = []
    for k, tangent in enumerate(node.tangents):
        if tangent.value not in node.returned:
            text.add(f"grad{k} = None")
        if any(write.tangent == k for write in node.late):
            text.add(f"given{k} = grad{k}")
        if any(feed is not None and k in feed for feed in node.feeds if _is_asked(feed, node)):
            text.add(f"came{k} = grad{k} is not None")
        if isinstance(tangent, WrappedTangent):
            parts += subclasses.open_tangent(text, tangent, k)
        else:
            _tangent(text, tangent, k, is_whole=node.is_whole)
            parts.append(f"grad{k}")
    saved = [_saved(text, node)] if node.saved > node.unchecked else []
    saved += ["*ctx.unchecked"] if node.unchecked else []
    written = [write for write in node.late if write.argument is not None]
    later = [f"ctx.later[{place}]{write.part}" for place, write in enumerate(written)]
    text.add(f"args = {list_of([*saved, *parts, *later])}")
    if node.tokens:
        text.add(f"args += {tokens(node.tokens)}")
    if node.generators:
        text.use("generators", RecomputeGenerators(node.generators))
        text.add("args += generators.seeded(ctx.seeds)")
    if node.inner:
        text.add("if ctx.layout is not None: args.append(ctx.layout)")
    text.add(f"del {', '.join(dict.fromkeys([*names, *arriving.values(), *parts]))}")
    text.add("run = ctx.needs.run")
    _release(text, node)
    why = "None" if needs.onward is None else "ctx.why"
    again = f"differentiated(run, args, {why}) if is_grad_enabled() else " if plan.opened is None else ""
    text.add(f"grads = {again}{run_graph(text)}")
    gradients = plan.flat_gradients(node)
    count_values(text, gradients + len(node.late) + node.tokens, "grads", "backward")
    _late(text, node, gradients)
    fed = [
        "None" if feed is None else _fed(subclasses.gradient(text, plan, k), feed, node)
        for k, feed in enumerate(node.feeds)
    ]
    text.add(f"return {tuple_of(fed)}")


def _release(text: Writer, node: NodePlan) -> None:
    """Let go of saved tensors that no other backward will read."""
    if node.saved == node.unchecked:
        return
    text.use("keeps_graph", autograd.keeps_graph)
    text.add("is_last = not keeps_graph()", "if is_last: ctx.maybe_clear_saved_tensors()")
    if node.inputs is not None:
        places = ["given", *(["copies"] if node.inputs.copied else []), *(["past"] if node.inputs.past else [])]
        text.add(f"if is_last: {''.join(f'ctx.{place} = ' for place in places)}None")


def _saved(text: Writer, node: NodePlan) -> str:
    """What reads the saved tensors; where results have graphs of their own in eager, a backward frees only its own."""
    if not node.groups:
        return "*ctx.saved_tensors"
    text.use("saved_of", saved_of)
    text.use("groups", node.groups)
    came = tuple_of(f"grad{k} is not None" for k in range(len(node.tangents)))
    return f"*saved_of(ctx, groups, {came})"


def _tangent(text: Writer, tangent: Tangent, k: int, *, is_whole: bool) -> None:
    layout = text.use(f"layout{k}", tangent.layout)
    text.use("plain_gradient", opening.plain_gradient)
    text.use("Tensor", torch.Tensor)
    text.use("strided", torch.strided)
    if is_whole:
        text.use("missing", helpers.missing)
        text.use(f"dtype{k}", getattr(torch, tangent.dtype.removeprefix("torch.")))
        text.use(f"device{k}", torch.device(tangent.device))
        text.add(f"if grad{k} is None: grad{k} = missing({layout}, dtype{k}, device{k})")
    place = text.use(f"place{k}", (k, "", tangent.where))
    odd = f"type(grad{k}) is not Tensor or grad{k}.layout is not strided or grad{k}.stride() != {tangent.layout.stride}"
    text.add(f"if grad{k} is not None and ({odd}): grad{k} = plain_gradient(grad{k}, {layout}, {place})")


def _refuse_surroundings(text: Writer, node: NodePlan) -> None:
    text.use("is_transformed", modes.is_transformed)
    text.use("transformed", surroundings.transformed)
    text.add("if is_transformed(): raise transformed('backward')")
    if not node.is_deterministic:
        text.use("is_deterministic", flags.is_deterministic)
        text.use("became_deterministic", surroundings.became_deterministic)
        text.add("if is_deterministic(): raise became_deterministic()")


def _refuse_late(text: Writer, node: NodePlan) -> None:
    """Under create_graph a write to what needs a gradient would lack its history."""
    if any(write.needs_grad for write in node.late):
        text.use("late_write", late_write)
        text.add("if is_grad_enabled(): raise late_write()")


def _late(text: Writer, node: NodePlan, first: int) -> None:
    """The backward's own writes, unseen by autograd; their values come from place `first` on."""
    place = 0
    for k, write in enumerate(node.late, start=first):
        if write.tangent is None:
            text.add(f"ctx.later[{place}]{write.part}.detach().copy_(grads[{k}].detach())")
            if write.part:
                text.use("note_write", helpers.note_write)
                text.add(f"note_write(ctx.later[{place}])")
            place += 1
        else:
            given = f"given{write.tangent}"
            text.add(f"if {given} is not None: {given}.detach().copy_(grads[{k}].detach())")


def _is_asked(feed: tuple[int, ...] | None, node: NodePlan) -> bool:
    """Whether a gradient is there only if certain others came: where zeros stand for missing ones it would be computed."""
    return node.is_whole and feed is not None and len(feed) not in (0, len(node.tangents))


def _fed(gradient: str, feed: tuple[int, ...], node: NodePlan) -> str:
    if not _is_asked(feed, node):
        return gradient
    return f"{gradient} if {' or '.join(f'came{tangent}' for tangent in feed)} else None"
