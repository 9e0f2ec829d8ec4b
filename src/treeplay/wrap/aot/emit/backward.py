"""`CallPlan` and its `NodePlan` → source of the node's backward, from what was saved and the gradients that came to those of
the arguments. Pure, as the call function's.
"""

from __future__ import annotations

import torch

from treeplay.codegen import Source, Writer, list_of, tuple_of
from treeplay.torch_seam import aot, autograd, flags, modes
from treeplay.wrap.aot.calls import node as helpers
from treeplay.wrap.aot.calls import surroundings
from treeplay.wrap.aot.calls.differentiated import differentiated, differentiated_again, late_write
from treeplay.wrap.aot.calls.kept import refuse_changes
from treeplay.wrap.aot.calls.node import Needs
from treeplay.wrap.aot.calls.random_states import RecomputeGenerators
from treeplay.wrap.aot.calls.saved_values import saved_of
from treeplay.wrap.aot.emit import subclasses
from treeplay.wrap.aot.emit.text import count_values, run_graph, tokens, write_plain_gradient
from treeplay.wrap.aot.plan.facts import CallPlan, NodePlan, Tangent, WrappedTangent


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
    _refuse_changes(text, plan)
    if aot.GRADIENTS_COME_IN_A_LIST:  # but for compiled autograd's
        text.add("grads = grads[0] if type(grads[0]) is list else [*grads]")
    text.use("is_any_autocast_enabled", flags.is_any_autocast_enabled)
    text.add("is_cast = is_any_autocast_enabled()")
    if needs.under_autocast is not None:
        text.add("if is_cast and (found := ctx.needs.under_autocast(ctx, grads)) is not None: return found")
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
    text.add("run = ctx.needs.run_for(ctx)" if node.acts_for_some else "run = ctx.needs.run")
    # Before the graph runs: then `args` alone holds what was saved, and it dies inside of the graph.
    _release(text, node)
    why = "None" if needs.onward is None else "ctx.why"
    again = f"differentiated(run, args, {why}) if is_grad_enabled() else " if plan.opened is None else ""
    text.add(f"grads = {again}{run_graph(text, 'is_cast')}")
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
    if is_whole:
        text.use("missing", helpers.missing)
        text.use(f"dtype{k}", tangent.dtype)
        text.use(f"device{k}", tangent.device)
        text.add(f"if grad{k} is None: grad{k} = missing({layout}, dtype{k}, device{k})")
    place = text.use(f"place{k}", (k, "", tangent.where))
    text.add(write_plain_gradient(text, f"grad{k}", tangent, place, layout=layout))


def _refuse_surroundings(text: Writer, node: NodePlan) -> None:
    text.use("is_transformed", modes.is_transformed)
    text.use("transformed", surroundings.transformed)
    text.add("if is_transformed(): raise transformed('backward')")
    if not node.is_deterministic:
        text.use("is_deterministic", flags.is_deterministic)
        text.use("became_deterministic", surroundings.became_deterministic)
        text.add("if is_deterministic(): raise became_deterministic()")


def _refuse_changes(text: Writer, plan: CallPlan) -> None:
    """Raise if something was written that eager's backward would read now, and this one does not: before all that is saved is
    asked for, as torch tells less of it."""
    if plan.read_again:
        text.use("refuse_changes", refuse_changes)
        text.use("read", tuple(name for _, name in plan.read_again))
        text.use("keeps_graph", autograd.keeps_graph)
        text.add("refuse_changes(read, ctx.read, ctx.read_at)")
        text.add("if not keeps_graph(): ctx.read = ctx.read_at = ()  # as the checkpoint lets its arguments go")


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
