"""`CallPlan` and its `NodePlan` → source of the node's forward: it runs the graph and saves for the backward. Pure, as the call
function's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.codegen import Source, Writer, list_of, tuple_of
from treeplay.torch_seam import autograd
from treeplay.values.block import SavedLayout
from treeplay.wrap.aot.calls import block
from treeplay.wrap.aot.calls.kept import past_of, versions_of
from treeplay.wrap.aot.calls.node import Needs
from treeplay.wrap.aot.calls.random_states import RecomputeGenerators, draw_seeds
from treeplay.wrap.aot.calls.redrawn import states_before
from treeplay.wrap.aot.calls.saved_values import counted_with
from treeplay.wrap.aot.emit import subclasses
from treeplay.wrap.aot.emit.text import count_values, run_graph, tokens
from treeplay.wrap.aot.plan.facts import CallPlan, KeptInputs, NodePlan


def emit_forward(plan: CallPlan, node: NodePlan, run: Callable[..., Any], needs: Needs) -> Source:
    """The node's forward: runs the graph, saves for the backward, marks what needs no gradient."""
    text = Writer()
    given = [plan.variable(k) for k in plan.inputs]
    with text.block(f"def forward(ctx, {', '.join(given)}):"):
        _forward(text, plan, node, run, needs, given)
    return text.source("node forward", entry="forward")


def _forward(
    text: Writer,
    plan: CallPlan,
    node: NodePlan,
    run: Callable[..., Any],
    needs: Needs,
    given: Sequence[str],
) -> None:
    text.use("run", run)
    text.use("needs", weakref.ref(needs))  # weakly: see `Needs`
    text.add("ctx.needs = needs()")
    count = plan.returned_values + node.saved
    later = [plan.variable(write.argument) for write in node.late if write.argument is not None]
    if later:
        text.add(f"ctx.later = {tuple_of(later)}")
    if node.inputs is not None:
        _keep_inputs(text, node.inputs, given)
    if plan.read_again:
        text.use("versions_of", versions_of)
        read = ", ".join(plan.variable(k) for k, _ in plan.read_again)
        text.add(f"ctx.read = ({read},)", f"ctx.read_at = versions_of({read})")
    if node.draws:
        text.use("states_before", states_before)
        devices = text.use("devices", tuple(dict.fromkeys(draw.device for draw in node.draws)))
        text.add(f"ctx.states = states_before({devices})")
    text.add(f"args = {subclasses.open_arguments(plan, given) or list_of(given)}")
    kept = {item.input for item in node.elsewhere}
    if gone := [name for k, name in enumerate(given) if k not in kept]:
        text.add(f"del {', '.join(gone)}")
    if plan.tokens:
        text.add(f"args[:0] = {tokens(plan.tokens)}")
    if node.generators:
        text.use("generators", RecomputeGenerators(node.generators))
        text.use("draw_seeds", draw_seeds)
        text.add(f"ctx.seeds = draw_seeds({len(node.generators)})", "args += generators.seeded(ctx.seeds)")
    text.add(f"try: values = {run_graph(text)}", "finally: args.clear()")
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
    # A gradient that does not come stays None: there is a backward without it.
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
        # Inference tensors keep no count, and raise.
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
    text.use("opened", block.open_block)
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
        others = [_saved_value(text, plan, node, k) for k in range(node.first_inner)]
        text.add(f"ctx.save_for_backward({', '.join([*others, f'*values[{begin}:{end}]'])})")
        if node.unchecked:
            unchecked = range(node.saved - node.unchecked, node.saved)
            places = [_saved_value(text, plan, node, k, at=f"values[{k - node.saved}]") for k in unchecked]
            text.add(f"ctx.unchecked = {list_of(places)}")


def _save_apart(text: Writer, plan: CallPlan, node: NodePlan, count: int) -> None:
    """Lines for values each of which is a tensor of its own."""
    count_values(text, count)
    if plan.tokens:
        text.add(f"values = values[{plan.tokens}:]")
    saved = [_saved_value(text, plan, node, k) for k in range(node.saved)]
    checked = saved[: len(saved) - node.unchecked]
    unchecked = saved[len(saved) - node.unchecked :]
    if checked:
        text.add(f"ctx.save_for_backward({', '.join(checked)})")
    if unchecked:
        text.add(f"ctx.unchecked = {list_of(unchecked)}")


def _saved_value(text: Writer, plan: CallPlan, node: NodePlan, k: int, *, at: str | None = None) -> str:
    """What a saved value is read from. It has no history: a view would keep that of its base."""
    place = at or f"values[{plan.returned_values - plan.tokens + k}]"
    if k in node.copied:
        return f"{place}.clone()"
    by = next((item for item in node.elsewhere if item.saved == k), None)
    if by is not None:
        shown = plan.variable(plan.inputs[by.input]) if by.input is not None else f"values[{by.value}]"
        return f"{text.use('counted_with', counted_with)}({place}, {shown})"
    return place if k in node.fresh else f"{place}.detach() if {place}._is_view() else {place}"
