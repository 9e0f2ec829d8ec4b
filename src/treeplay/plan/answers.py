"""What a program on a GPU asks on the host as it goes along, and a recording answers at its end.

    valid_1 ─▶ _assert_async.msg  ┐
    valid_2 ─▶ _assert_async.msg  ┴─▶  all(stack(valid_1, valid_2)): one more result, which the call reads after the launch

A distribution that validates its arguments waits for the device once for each of them. A recording waits once. If anything did
not pass, the call is taken back, and the program itself runs and raises its own exception. Until then, values that did not pass
go through the rest of the program, where `harmless` sees to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.fx

from treeplay.errors import Refusal
from treeplay.plan.harmless import NodeWriter, made_harmless
from treeplay.trace.run.checks import ADVICE, VALIDATES
from treeplay.trace.traced import Trace
from treeplay.values.overlap import overlaps_itself
from treeplay.values.signature import Kind

aten = torch.ops.aten
MOST_BYTES = 2**28
"""What each call may copy on the device so that it can be taken back."""


def with_answer(traced: Trace, device: torch.device) -> Trace:
    """The trace with its checks as one result; as it is if it has none. Raises `Refusal` if the caller differentiates it."""
    graph, signature = traced.graph, traced.signature
    asking = [node for node in graph.find_nodes(op="call_function", target=aten._assert_async.msg) if _is_ours(node)]
    if not asking:
        return traced
    if signature.kind is Kind.DIFFERENTIABLE:
        raise _refusal(asking[0], "a distribution checks its arguments, and waits on the host for the answer")
    more, unknown = made_harmless(graph, asking)
    if unknown is not None:
        name = str(unknown.target).removeprefix("aten.")
        raise _refusal(
            asking[0], f"a distribution checks its arguments, and {name} behind it may end the use of the GPU"
        )
    output = graph.output_node()
    with graph.inserting_before(output):
        answer = _all_of(graph, [*(node.args[0] for node in asking), *more], device)
    for node in asking:
        graph.erase_node(node)
    results: tuple[torch.fx.Node, ...] = output.args[0]  # type: ignore[assignment]
    output.args = ((*results, answer),)
    return replace(traced, signature=replace(signature, outputs=len(results) + 1, answer=len(results)))


def check_can_be_taken_back(traced: Trace, inputs: Sequence[torch.Tensor]) -> None:
    """Raise `Refusal` if a call that is answered with no could not be undone."""
    if traced.signature.answer is None:
        return
    written = [inputs[at] for at in traced.signature.mutated]
    if sum(tensor.nbytes for tensor in written) > MOST_BYTES or any(map(overlaps_itself, written)):
        raise _refusal(None, "a distribution checks its arguments, and the program writes too much to be taken back")


def _is_ours(node: torch.fx.Node) -> bool:
    return node.args[1] == VALIDATES


def _all_of(graph: torch.fx.Graph, flags: Sequence[torch.fx.Node], device: torch.device) -> torch.fx.Node:
    if len(flags) == 1:
        return flags[0]
    write = NodeWriter(graph, device)
    return write(aten.all.default, write(aten.stack.default, list(flags)))


def _refusal(node: torch.fx.Node | None, why: str) -> Refusal:
    return Refusal.of("torch.distributions", why, ADVICE, node.meta.get("where") if node is not None else None)
