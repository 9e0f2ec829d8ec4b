"""Which device a traced program runs on, and what moves there with it.

A recording belongs to one device. A program on a GPU may still use numbers that its optimizer keeps on the CPU (its step
counts) and constants made from Python numbers: they move to the GPU with the recording. Anything else on another device is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.fx

from treeplay.errors import Refusal
from treeplay.torch_seam.schemas import is_random
from treeplay.trace.prune import acts
from treeplay.trace.traced import Trace
from treeplay.values.place import Binding, How
from treeplay.values.signature import Argument, Constant, Input, Signature, State
from treeplay.values.spec import TensorSpec

CPU = torch.device("cpu")
_CHECKS_ERRORS = torch.ops.aten._linalg_check_errors.default


def device_of(traced: Trace) -> torch.device:
    """The one device that the program computes on; raises `Refusal` if there are several, or one of another kind."""
    first: dict[torch.device, torch.fx.Node] = {}
    for node in traced.graph.nodes:
        spec = node.meta.get("spec")
        if spec is not None:
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
    """The trace with all of it on `device`, and the indices of the inputs that have to move there.

    Raises `Refusal` for a tensor on the CPU that may not move: an argument, a parameter, a result.
    """
    if device == CPU:
        return traced, ()
    signature = traced.signature
    for node in traced.graph.nodes:
        _check_acts(node)
        _check_may_move(node, signature.inputs, traced)
    moving = []
    inputs = list(signature.inputs)
    for index, item in enumerate(inputs):
        if item.spec.device == CPU:
            source = item.source
            if isinstance(source, Constant):
                source = Constant(source.tensor.to(device))
            else:
                moving.append(index)
            inputs[index] = replace(item, source=source, spec=_on(item.spec, device))
    for node in traced.graph.nodes:
        _move(node, device)
    return replace(traced, signature=replace(signature, inputs=tuple(inputs))), tuple(moving)


def move_state(
    signature: Signature, moving: Sequence[int], inputs: list[torch.Tensor], device: torch.device
) -> list[torch.Tensor]:
    """Today's inputs, with those at `moving` on `device`: their places hold them from now on."""
    inputs = list(inputs)
    for index in moving:
        source = signature.inputs[index].source
        if isinstance(source, State):
            inputs[index] = moved = inputs[index].to(device)
            for place in (source.place, *source.also):
                place.write(moved)
    return inputs


def check_stays(signature: Signature, moving: Sequence[int], device: torch.device) -> None:
    """Raise `Refusal` if state would have to move: a program that is run again to be wrapped reads it where it is."""
    if moving:
        names = ", ".join(signature.inputs[index].name for index in moving)
        why = f"{names} is on the CPU in a program that computes on {device}, and its results are differentiated"
        raise Refusal.of("device", why, "keep it on the GPU")


def _check_may_move(node: torch.fx.Node, inputs: tuple[Input, ...], traced: Trace) -> None:
    spec = node.meta.get("spec")
    if spec is None or spec.device != CPU:
        return
    if node.op == "placeholder":
        item = inputs[int(node.name.removeprefix("in"))]
        if isinstance(item.source, Constant) or (
            isinstance(item.source, State) and _is_of_optimizer(item.source.place)
        ):
            return
        user = next(iter(node.users), node)
        is_given = isinstance(item.source, Argument)
        raise _refusal(
            user,
            f"{item.name} is a tensor on the CPU in a program that computes on a GPU",
            "move it to the GPU before the call" if is_given else "keep it on the GPU",
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


def _is_of_optimizer(place: Binding) -> bool:
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
