"""The random numbers of a call, drawn once more: derivatives of its backward are computed from its inputs again.

    forward:                ctx.states = states_before((device, ...))     where the default generators stand
    under create_graph:     with drawn_again(ctx.states): ...             the same operators in the same order

Both graphs must draw alike, which `draws_of` compares once, when the second is made. Afterwards the generators stand where they
stood before.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from treeplay.observe.rng import moving
from treeplay.torch_seam import trees as pytree
from treeplay.torch_seam.partition import is_of_backward
from treeplay.torch_seam.schemas import draws
from treeplay.wrap.aot.plan.facts import Draw

States = list[tuple[torch.Generator, torch.Tensor]]


def draws_of(module: torch.fx.GraphModule) -> tuple[Draw, ...]:
    """The operators of a graph that draw random numbers, in its order."""
    used: set[torch.fx.Node] = set()
    for node in reversed(list(module.graph.nodes)):
        if node.op == "output" or node in used:
            used.update(node.all_input_nodes)
    return tuple(
        _draw(node, op, is_used=node in used) for node in module.graph.nodes if (op := _drawing(node)) is not None
    )


def is_drawn_late(joint: torch.fx.GraphModule) -> bool:
    """Whether a backward draws for itself, as a custom autograd function's may."""
    return any(is_of_backward(node) for node in joint.graph.nodes if _drawing(node))


def has_own_generators(module: torch.fx.GraphModule) -> bool:
    """Whether an operator of a graph, or one of a graph inside of it, draws from something else than a default generator."""
    return any(
        _drawing(node) is not None and (part is not module or node.kwargs.get("generator") is not None)
        for part in module.modules()
        if isinstance(part, torch.fx.GraphModule)
        for node in part.graph.nodes
    )


def _drawing(node: torch.fx.Node) -> Any:
    """The operator that a node calls, if it draws random numbers."""
    op: Any = node.target
    args: Sequence[Any] = node.args
    if op is torch.ops.higher_order.run_and_save_rng_state:
        op, *args = node.args
    return op if draws(op, args, node.kwargs) else None


def _draw(node: torch.fx.Node, op: Any, *, is_used: bool) -> Draw:
    tensors = [value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]
    return Draw(
        str(op), tuple(f"{value.dtype}{list(value.shape)}" for value in tensors), _device(node, tensors), is_used
    )


def _device(node: torch.fx.Node, tensors: Sequence[torch.Tensor]) -> torch.device:
    """Where a node draws: of a state and a value, the value comes last."""
    return tensors[-1].device if tensors else torch.device(node.kwargs.get("device") or "cpu")  # type: ignore[arg-type]


def states_before(devices: Sequence[torch.device]) -> States | None:
    """The default generators of devices and where they stand; None where that cannot be asked, as during a capture."""
    try:
        return [(generator, generator.get_state()) for generator in map(_default, devices)]
    except RuntimeError:
        return None


@functools.cache  # tensors tell the number of their device
def _default(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    generator: torch.Generator = torch.get_device_module(device).default_generators[device.index or 0]
    return generator


@contextlib.contextmanager
def drawn_again(states: States) -> Iterator[None]:
    """While this lasts, generators go on from these states; what other threads draw meanwhile is not part of their sequence."""
    with moving:
        now = [(generator, generator.get_state()) for generator, _ in states]
        _set(states)
    try:
        yield
    finally:
        with moving:
            _set(now)


def _set(states: States) -> None:
    for generator, state in states:
        generator.set_state(state)
