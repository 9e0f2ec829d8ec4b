"""Which device a traced program runs on, and what moves there with it.

A recording belongs to one device. A program on a GPU may still use numbers that its optimizer keeps on the CPU (its step
counts) and constants made from Python numbers: they move to the GPU with the recording. Arguments on the CPU that the program
only moves to the GPU are moved in each call, before the launch. Anything else on another device is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.fx

from treeplay.errors import Refusal
from treeplay.lower.aten.memory import empty_like_spec
from treeplay.plan.answers import with_answer
from treeplay.torch_seam.schemas import is_random
from treeplay.trace.signature.prune import acts
from treeplay.trace.traced import Trace
from treeplay.values.output import inputs_used
from treeplay.values.place import How, Place
from treeplay.values.signature import Argument, Constant, Input, Kind, MoveTo, Signature, State
from treeplay.values.spec import TensorSpec

CPU = torch.device("cpu")
_CHECKS_ERRORS = torch.ops.aten._linalg_check_errors.default
_COPY, _TO_COPY = torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default


def device_of_program(traced: Trace) -> torch.device:
    """The one device that the program computes on; raises `Refusal` if there are several, or one of another kind."""
    first: dict[torch.device, torch.fx.Node] = {}
    for node in traced.graph.nodes:
        spec = node.meta.get("spec")
        if spec is not None:
            # An input is on no line of the program: a refusal names the first operator that uses it.
            first.setdefault(spec.device, next(iter(node.users), node) if node.op == "placeholder" else node)
    others = [device for device in first if device != CPU]
    if len(others) > 1:
        raise _refusal(
            first[others[1]],
            f"the program computes on {others[0]} and on {others[1]}, and a recording belongs to one device",
            "jit the parts apart",
        )
    if others and others[0].type != "cuda":
        raise _refusal(
            first[others[0]],
            f"the program computes on {others[0]}, and programs are recorded on the CPU and on NVIDIA GPUs",
            "run it without jit there",
        )
    return others[0] if others else CPU


def settle(traced: Trace, device: torch.device) -> tuple[Trace, tuple[int, ...]]:
    """The trace with all of it on `device`, and the indices of the inputs that have to move there. What it asks on the host
    is one of its results.

    Raises `Refusal` for a tensor on the CPU that may not move: an argument, a parameter, a result.
    """
    if device == CPU:
        return traced, ()
    traced = with_answer(traced, device)
    signature = traced.signature
    for node in traced.graph.nodes:
        _check_acts(node)
        _check_may_move(node, signature, device)
    moving = []
    inputs = list(signature.inputs)
    for index, item in enumerate(inputs):
        if item.spec.device == CPU:
            source, spec = item.source, _on(item.spec, device)
            if isinstance(source, Constant):
                source = Constant(source.tensor.to(device))
            elif isinstance(source, Argument):
                source = replace(source, moves_to=MoveTo(device, _is_non_blocking(traced, index)))
                # A copy on another device is without the holes.
                spec = replace(spec, stride=empty_like_spec(spec, "meta").clone().stride())
            else:
                moving.append(index)
            inputs[index] = replace(item, source=source, spec=spec)
    for node in traced.graph.nodes:
        _move(node, device)
        if node.op == "placeholder" and "spec" in node.meta:
            node.meta["spec"] = inputs[_number(node)].spec
    return replace(traced, signature=replace(signature, inputs=tuple(inputs))), tuple(moving)


def move_state(
    signature: Signature, moving: Sequence[int], inputs: list[torch.Tensor], device: torch.device
) -> list[torch.Tensor]:
    """Today's inputs, with those at `moving` on `device`: their places hold them from now on."""
    inputs = list(inputs)
    for index in moving:
        item = signature.inputs[index]
        if isinstance(item.source, State):
            inputs[index] = moved = inputs[index].to(device)
            for place in item.places:
                place.write(moved)
    return inputs


def check_stays(signature: Signature, moving: Sequence[int], device: torch.device) -> None:
    """Raise `Refusal` if state would have to move: a program that is run again to be wrapped reads it where it is."""
    if moving:
        names = ", ".join(signature.inputs[index].name for index in moving)
        why = f"{names} is on the CPU in a program that computes on {device}, and its results are differentiated"
        raise Refusal.of("device", why, "keep it on the GPU")


def _check_may_move(node: torch.fx.Node, signature: Signature, device: torch.device) -> None:
    spec = node.meta.get("spec")
    if spec is None or spec.device != CPU:
        return
    if node.op == "placeholder":
        item = signature.inputs[_number(node)]
        if isinstance(item.source, Constant) or (
            isinstance(item.source, State) and _is_of_optimizer(item.source.place)
        ):
            return
        is_given = isinstance(item.source, Argument)
        user = next((user for user in node.users if not _moves(user, node, device)), None)
        if is_given and user is None and _may_move_in_each_call(item, signature):
            return
        raise _refusal(
            user or next(iter(node.users), node),
            f"{item.name} is a tensor on the CPU in a program that computes on a GPU",
            "move it to the GPU before the call, or as the first thing that the program does with it"
            if is_given
            else "keep it on the GPU",
        )
    if any(user.op == "output" for user in node.users):
        raise _refusal(
            node,
            "copies a result to the CPU, which a recording cannot wait for",
            "return it, and move it after the call",
        )
    if is_random(node.target):
        raise _refusal(
            node, "draws random numbers on the CPU in a program that computes on a GPU", "pass device= to it"
        )


def _moves(user: torch.fx.Node, node: torch.fx.Node, device: torch.device) -> bool:
    """Whether an operator does nothing with `node` but copy it to the device."""
    if user.target is _COPY:
        return user.args[1] is node and user.args[0] is not node and user.meta["spec"].device == device
    return user.target is _TO_COPY and user.meta["spec"].device == device


def _may_move_in_each_call(item: Input, signature: Signature) -> bool:
    """Whether the call needs nothing of an argument but its copy: it is not returned, stored, or the same as some state."""
    at = signature.inputs.index(item)
    is_kept = at in inputs_used(signature.values)
    is_plain = (
        not item.is_mutated and item.begins is None and isinstance(item.source, Argument) and not item.source.also
    )
    return is_plain and not is_kept and signature.kind is not Kind.DIFFERENTIABLE


def _is_non_blocking(traced: Trace, index: int) -> bool:
    """Whether the program says of each copy of an input that the host need not wait."""
    (node,) = (node for node in traced.graph.find_nodes(op="placeholder") if node.name == f"in{index}")
    return all(user.kwargs.get("non_blocking", user.args[2:3] == (True,)) for user in node.users)


def _number(node: torch.fx.Node) -> int:
    return int(node.name.removeprefix("in"))


def _check_acts(node: torch.fx.Node) -> None:
    """Refuse what happens on the host, where a replay on a GPU launches kernels and nothing else."""
    if node.target is _CHECKS_ERRORS:
        call = str(node.args[1]).removeprefix("torch.")
        why = f"{call} asks on the host whether it succeeded, which a recording cannot wait for"
        raise _refusal(node, why, f"use torch.{call}_ex, which leaves that to you")
    if acts(node) and node.target.namespace != "aten":  # type: ignore[union-attr]
        why = (
            "its results are not used, so it is called for what it does beside them, and a replay repeats only kernels"
        )
        raise _refusal(node, why, "return its result, declare what it writes (mutates_args=), or call it outside")


def _is_of_optimizer(place: Place) -> bool:
    """Whether a place is in the state that an optimizer keeps of a parameter. Nobody else has a hold on what is there."""
    parent = place.parent
    return place.how is How.ITEM and parent is not None and isinstance(parent.key, torch.Tensor)


def _move(node: torch.fx.Node, device: torch.device) -> None:
    spec = node.meta.get("spec")
    if spec is not None and spec.device == CPU:
        node.meta["spec"] = _on(spec, device)
    named = node.kwargs.get("device")
    if isinstance(named, (torch.device, str)) and torch.device(named).type == "cpu":
        node.update_kwarg("device", device)


def _on(spec: TensorSpec, device: torch.device) -> TensorSpec:
    return replace(spec, device=device)


def _refusal(node: torch.fx.Node, why: str, advice: str) -> Refusal:
    op = str(node.target).removeprefix("aten.") if node.op == "call_function" else "device"
    return Refusal.of(op, why, advice, node.meta.get("where"))
