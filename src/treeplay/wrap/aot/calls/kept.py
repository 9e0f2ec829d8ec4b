"""What a node keeps of its call's inputs, for derivatives of its backward, which are computed from them again.

kept_inputs     which are kept, weakly or as copies      once, from the joint graph and the forward
the forward     ctx.given, .versions, .copies, .past     each call
inputs_of       the inputs of that call, as they were    under create_graph
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from treeplay.errors import Refusal, UsageError
from treeplay.torch_seam.aot import Traced
from treeplay.torch_seam.operators import OpOverload
from treeplay.torch_seam.schemas import by_name
from treeplay.wrap.aot.calls.saved_values import unchanged
from treeplay.wrap.aot.plan.facts import KeptInputs, NodePlan


def overwritten_inputs(traced: Traced) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The inputs that a call overwrites; those of them that gradients depend on, and those that gradients lead to. To be asked
    before the joint graph is cut in two."""
    infos = list(enumerate(traced.facts.input_info))
    inputs, needed = traced.graph.graph.find_nodes(op="placeholder"), _needed(traced)
    overwritten = tuple(k for k, info in infos if info.mutates_data)
    return (
        overwritten,
        tuple(k for k in overwritten if inputs[k] in needed),
        tuple(k for k, info in infos if info.mutates_data and info.requires_grad),
    )


def kept_inputs(
    traced: Traced,
    node: NodePlan,
    forward: torch.fx.GraphModule,
    saved: Sequence[torch.fx.Node],
    overwritten: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    *,
    is_every: bool,
) -> KeptInputs:
    """How a node keeps its inputs: those that live anyway, because they are leaves or saved, others weakly. What is not
    saved is compared by its version. Of what the call overwrites, its earlier contents are kept where they are needed."""
    inputs = forward.graph.find_nodes(op="placeholder")
    infos = traced.facts.input_info
    tensors = [isinstance(node.meta.get("val"), torch.Tensor) for node in inputs[: len(infos)]]
    held, versioned = [], []
    for k, (place, info, is_tensor) in enumerate(zip(inputs, infos, tensors, strict=False)):
        is_kept = is_every or (info.requires_grad and info.is_leaf) or place in saved
        if not is_tensor or (is_kept and not info.mutates_data):
            held.append(k)
        if is_tensor and place not in saved and not info.mutates_data:
            versioned.append(k)
    every, needed, past = overwritten
    at_hand = {saved[at]: at for at in node.copied if at < node.saved - node.unchecked}
    found = tuple((k, at_hand[inputs[k]]) for k in needed if inputs[k] in at_hand)
    copied = tuple(k for k in needed if inputs[k] not in at_hand)
    return KeptInputs(tuple(held), tuple(versioned), every, copied, found, past)


def _needed(traced: Traced) -> set[torch.fx.Node]:
    """The nodes of a joint graph that gradients depend on."""
    graph, infos = traced.graph.graph, traced.facts.input_info
    outputs: Any = graph.output_node().args[0]
    needed = {node for node in outputs[-len(infos) :] if isinstance(node, torch.fx.Node)}
    for node in reversed(list(graph.nodes)):
        if node in needed:
            needed.update(set(node.all_input_nodes) - _statistics(node))
    return needed


def _statistics(node: torch.fx.Node) -> set[torch.fx.Node]:
    """The running statistics among an operator's arguments, if it does not read them but for their new contents: in training,
    where it computes with those of the batch."""
    given = by_name(node.target, node.args, node.kwargs) if isinstance(node.target, OpOverload) else {}
    if any(given.get(name) is False for name in ("train", "training", "update")):
        return set()
    found = (given.get("running_mean"), given.get("running_var"))
    return {value for value in found if isinstance(value, torch.fx.Node)}


def inputs_again(ctx: Any, kept: KeptInputs, *, may_differ: bool = False) -> list[Any]:
    """The inputs of a call, unchanged since, or as they were before it; raises torch's own errors, and `Refusal` where one is
    gone. `may_differ`: for whoever asks nothing of their contents."""
    saved = ctx.saved_tensors  # freed, or changed in place
    inputs: list[Any] = [item() if type(item) is weakref.ref else item for item in ctx.given]
    for was, item in zip(ctx.given, inputs, strict=True):
        if item is None and was is not None:
            why = "an argument is gone that the compiled backward does not need"
            raise Refusal.of("create_graph", why, "keep the arguments until the last backward", None)
    for k, version in zip(kept.versioned, ctx.versions, strict=True):
        if version is not None and not may_differ:
            unchanged(inputs[k], version)
    for place, k in enumerate(kept.copied):
        inputs[k] = ctx.copies[place]
    for k, at in kept.saved:
        inputs[k] = saved[at]
    for place, k in enumerate(kept.past):
        past = ctx.past[place]
        inputs[k] = _AsItWas.apply(past, past if inputs[k] is None else inputs[k])  # type: ignore[no-untyped-call]
    return inputs


class _AsItWas(torch.autograd.Function):
    """The contents of `value` with the history of `past`."""

    @staticmethod
    def forward(ctx: Any, past: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def past_of(tensor: torch.Tensor) -> torch.Tensor:
    """What leads to where a tensor comes from, whatever is written to the tensor later: no view, for those follow."""
    with torch.enable_grad():
        past: torch.Tensor = torch.ops.aten._unsafe_view.default(tensor, tensor.shape)
    return past


def refuse_changes(names: Sequence[str], tensors: Sequence[torch.Tensor], versions: Sequence[int | None]) -> None:
    """Raise if one of the tensors that a checkpoint has read is not at its version any more; after the last backward there are
    none."""
    for name, tensor, version in zip(names, tensors, versions, strict=False):
        if version is not None and tensor._version != version:
            raise UsageError(
                f"backward: {name}, which a checkpoint of the program reads, has been modified by an inplace operation since "
                "the call. Eager computes again what is in the checkpoint, with the new contents; a recording has saved what "
                "that gave. Fix: call backward before you write to it"
            )


def versions_of(*tensors: torch.Tensor) -> list[int | None]:
    """How often each tensor was changed; None for inference tensors, which keep no count."""
    return [None if tensor.is_inference() else tensor._version for tensor in tensors]
