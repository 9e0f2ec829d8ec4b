"""The facts about a compiled graph that the decision to record it looks at, gathered in one place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any

import torch
import torch.fx

from treeplay.backend.metadata import example_spec
from treeplay.device.host.rules import refusal_of_operator
from treeplay.errors import Refusal
from treeplay.observe.lines import location_in
from treeplay.torch_seam import trees as pytree
from treeplay.torch_seam.operators import HigherOrderOperator, OpOverload, operator_name
from treeplay.torch_seam.schemas import written_arguments
from treeplay.torch_seam.symbols import example_of
from treeplay.values.captured import DeviceUse, InputFacts, Role
from treeplay.values.location import Location
from treeplay.values.refusal import Reason

MARK = "treeplay"
"""`torch.fx.traceback.annotate({"treeplay": "unrecorded"})` around a part of a program keeps its graph from being recorded."""

_UNSAFE_TAG = getattr(torch.Tag, "cudagraph_unsafe", None)
_CONTROL_FLOW = ("cond", "while_loop", "switch")
_ON_THE_HOST = ("with_effects", "run_and_save_rng_state", "run_with_rng_state")
_QUANTIZES = ("quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic")
_REBINDS = ("set_", "resize_", "resize_storage_bytes_")


def calls_of(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The nodes that call something that runs."""
    return [
        node
        for node in module.graph.nodes
        if node.op in ("call_function", "call_method", "call_module") and "getitem" not in str(node.target)
    ]


def input_facts(
    nodes: Sequence[torch.fx.Node], values: Sequence[Any], roles: Sequence[Role], names: Sequence[str]
) -> tuple[InputFacts, ...]:
    """Each input of a graph, with the line that writes it, if the graph does."""
    return tuple(starmap(_input, zip(nodes, values, roles, names, strict=True)))


def _input(node: torch.fx.Node, value: Any, role: Role, name: str) -> InputFacts:
    writes = [user for user in node.users if _writes(user, node)]
    kind = _kind(value)
    is_memory = kind == "Tensor"
    return InputFacts(
        name=name,
        role=role,
        spec=example_spec(value) if is_memory else None,
        offset=example_of(value.storage_offset()) if is_memory else 0,
        kind=kind,
        is_written=bool(writes),
        is_rebound=any(_name(user) in _REBINDS for user in writes),
        written=_line_of_write(writes[0]) if writes else None,
    )


def _kind(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    if value.layout is not torch.strided:
        return f"{value.layout} tensor"
    # A recording reads memory, and knows nothing of these bits.
    return "conjugated Tensor" if value.is_conj() else "negated Tensor" if value.is_neg() else "Tensor"


def _writes(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    return isinstance(user.target, OpOverload) and node in written_arguments(user.target, user.args, user.kwargs)


def _line_of_write(write: torch.fx.Node) -> Location | None:
    """The user's line: that of the write itself, or, as that is put at a graph's end, of what it writes."""
    for node in (write, *reversed(write.all_input_nodes)):
        where = line_of(node)
        if where is not None and node.op != "placeholder":
            return where
    return None


def line_of(node: torch.fx.Node) -> Location | None:
    """The user's line that a node comes from."""
    return location_in(node.meta.get("stack_trace"))


def devices_of(module: torch.fx.GraphModule) -> tuple[DeviceUse, ...]:
    """Each device that the graph works on, with the first operator there."""
    found: dict[torch.device, DeviceUse] = {}
    for node in module.graph.nodes:
        user = next((user for user in node.users if user.op != "output"), None) if node.op == "placeholder" else node
        if user is None or node.op == "output":
            continue
        for leaf in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(leaf, torch.Tensor):
                found.setdefault(leaf.device, DeviceUse(leaf.device, _name(user), line_of(user)))
    return tuple(found.values())


def obstacles_of(module: torch.fx.GraphModule) -> Iterator[Reason]:
    """Operators that no recording can hold, in the graph and in the branches of its control flow."""
    for node in calls_of(module):
        reason = _obstacle(node)
        if reason is not None:
            yield replace(reason, op=_name(node), where=line_of(node))


def _obstacle(node: torch.fx.Node) -> Reason | None:
    op = node.target
    if isinstance(op, HigherOrderOperator):
        if op.name() in _CONTROL_FLOW:
            why = "chooses on the host what runs, by a value that only exists when the recording is replayed"
            return Reason(op.name(), why, "decide on the device (`torch.where`)")
        if op.name() in _ON_THE_HOST:
            why = "has an effect on the host (an order to keep, a state of a generator), which no replay repeats"
            return Reason(op.name(), why, "compile it apart from the rest")
        return None
    if not isinstance(op, OpOverload):
        return None
    if _UNSAFE_TAG is not None and _UNSAFE_TAG in op.tags:
        return Reason(_name(node), "is marked by torch as unfit for a recording", "compile it apart from the rest")
    args, kwargs = pytree.tree_map_only(torch.fx.Node, lambda found: found.meta.get("val"), (node.args, node.kwargs))
    reason = refusal_of_operator(op, args, kwargs)
    if reason is not None:
        return reason
    leaves = pytree.tree_leaves((args, kwargs, node.meta.get("val")))
    odd = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided), None)
    if odd is None:
        return None
    return Reason(_name(node), f"works on a tensor of layout {odd.layout}", "use strided tensors (`to_dense()`)")


def marks_of(module: torch.fx.GraphModule) -> tuple[Reason, ...]:
    """What the user asked not to record, each line once."""
    found: dict[Location | None, Reason] = {}
    for node in calls_of(module):
        if (node.meta.get("custom") or {}).get(MARK) == "unrecorded":
            where = line_of(node)
            why = "is marked as unrecorded by the program"
            found.setdefault(where, Reason(_name(node), why, "take the annotation away to record it", where))
    return tuple(found.values())


def has_caching_allocator() -> bool:
    """Whether memory on an accelerator is kept for the next use, as a recording needs it."""
    return os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "") in ("", "0")


def _name(node: torch.fx.Node) -> str:
    return operator_name(node.target) or str(getattr(node.target, "__name__", node.target))


def nested_graphs(program: Any) -> list[torch.fx.GraphModule]:
    """A captured graph and those inside of it; none for another callable."""
    parts = program.modules() if isinstance(program, torch.fx.GraphModule) else ()
    return [part for part in parts if isinstance(part, torch.fx.GraphModule)]


def has_custom_functions(program: Any) -> bool:
    """Whether a captured graph calls a custom autograd function, in the form that Dynamo gives it."""
    return calls(program, torch.ops.higher_order.autograd_function_apply)


def calls(program: Any, target: Any) -> bool:
    """Whether a captured graph, or one inside of it, calls an operator."""
    return any(part.graph.find_nodes(op="call_function", target=target) for part in nested_graphs(program))


def called_by(program: Any) -> frozenset[str] | None:
    """The names of what a captured graph calls, in small letters; None where that is not known."""
    if not isinstance(program, torch.fx.GraphModule):
        return None
    return frozenset(_called(node, part).lower() for part in nested_graphs(program) for node in calls_of(part))


def _called(node: torch.fx.Node, part: torch.fx.GraphModule) -> str:
    return type(part.get_submodule(str(node.target))).__name__ if node.op == "call_module" else _name(node)


def check_traceable(program: Any, inputs: Sequence[Any]) -> None:
    """Raise for a captured graph that makes quantized tensors, or takes or makes tensors of oneDNN's (before torch 2.14, Dynamo
    ends a graph before it would make one). Their fakes are plain, and so is what would come out; where they are not, Inductor
    reads such memory as if it were plain."""
    nodes = list(program.graph.nodes) if isinstance(program, torch.fx.GraphModule) else []
    taken = next((at for at, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.is_mkldnn), None)
    if taken is not None:
        given = [node for node in nodes if node.op == "placeholder"]
        where = next((line_of(user) for user in given[taken].users), None) if given else None
        why, advice = "takes a tensor of oneDNN's own layout", "pass a plain one (`to_dense()`)"
        raise Refusal.of("to_mkldnn", why, advice, where)
    for node in (node for part in nested_graphs(program) for node in part.graph.nodes):
        if getattr(node.meta.get("example_value"), "is_mkldnn", False):
            why, advice = "makes a tensor of oneDNN's own layout", "keep this part outside of the program"
            raise Refusal.of(_name(node), why, advice, line_of(node))
        if _name(node) in _QUANTIZES:
            why, advice = "makes a quantized tensor", "quantize outside of the program, or with torchao"
            raise Refusal.of(_name(node), why, advice, line_of(node))
