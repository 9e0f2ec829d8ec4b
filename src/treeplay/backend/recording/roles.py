"""What each input of a graph is to us: it stays where it is, is ours, or has to be copied. Pure, by names and marks.

arguments of the call ─ roles ─▶ inputs of forward or inference, in the same order
                             ─▶ inputs of the backward: saved tensors first, then incoming gradients
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.fx

from treeplay.errors import InternalError
from treeplay.torch_seam.tensors import shares_storage
from treeplay.values.captured import Role
from treeplay.wrap.aot.compilers import ARGUMENT

_DYNAMO_NAME = re.compile(r"^[lgLG]_(\w+)_$")  # of a local or global variable
_STATIC_MARK = "_dynamo_static_input_type"
_SEEDS = ("bwd_seed", "bwd_base_offset", "bwd_rng_state", "fwd_seed", "fwd_base_offset", "fwd_rng_state")


def argument_roles(program: Any, inputs: Sequence[Any], *, held: int = 0) -> tuple[Role, ...]:
    """The roles of the arguments of a captured program: `held` tensors of its own, and then its `inputs`."""
    marked = _marked(program) if isinstance(program, torch.fx.GraphModule) else frozenset()
    given = [_role(value, at in marked) for at, value in enumerate(inputs)]
    return (*[Role.STATIC] * held, *given)


def argument_names(program: Any, inputs: Sequence[Any], *, held: Sequence[str]) -> tuple[str, ...]:
    """What the arguments of a captured program are called, as near to the user's own names as Dynamo tells."""
    if isinstance(program, torch.fx.GraphModule):
        targets = [str(node.target) for node in program.graph.find_nodes(op="placeholder")]
    else:
        targets = [f"argument {at}" for at in range(len(inputs))]
    return (*held, *(_DYNAMO_NAME.sub(r"\1", target) for target in targets))


def graph_roles(
    nodes: Sequence[torch.fx.Node], arguments: Mapping[int, Role], saved: Mapping[str, Role]
) -> tuple[Role, ...]:
    """The roles of a graph's placeholders: of arguments by where they stand in the call, of `saved` tensors by name."""
    return tuple(_of_node(node, arguments, saved) for node in nodes)


def saved_roles(forward: torch.fx.GraphModule, roles: Sequence[Role]) -> dict[str, Role]:
    """The roles of results of a forward, by name, that lie in the memory of an input: they are what that is."""
    inputs = [
        (node.meta.get("val"), role)
        for node, role in zip(forward.graph.find_nodes(op="placeholder"), roles, strict=True)
        if isinstance(node.meta.get("val"), torch.Tensor)
    ]
    found: dict[str, Role] = {}
    for node in forward.graph.output_node().all_input_nodes:
        value = node.meta.get("val")
        shared = [role for other, role in inputs if isinstance(value, torch.Tensor) and shares_storage(value, other)]
        if shared:
            found[node.name] = shared[0]
    return found


def check_saved_come_first(names: Sequence[str]) -> None:
    """Raise `InternalError` unless the inputs of a backward that are saved come before gradients and random state."""
    for before, name in pairwise(names):
        if _is_fixed(name) and not _is_fixed(before):
            raise InternalError(f"input `{name}` of a backward is saved, and comes after `{before}`, which is not")


def is_gradient(name: str) -> bool:
    """Whether a backward's input, by its name, is a gradient that comes in."""
    return "tangents" in name


def _is_fixed(name: str) -> bool:
    return not is_gradient(name) and not any(seed in name for seed in _SEEDS)


def _of_node(node: torch.fx.Node, arguments: Mapping[int, Role], saved: Mapping[str, Role]) -> Role:
    value = node.meta.get("val")
    known = arguments.get(node.meta.get(ARGUMENT, -1), saved.get(node.name))
    if value is not None and not isinstance(value, torch.Tensor):
        return Role.PLAIN
    if known is not None:
        return known
    if is_gradient(node.name) or not _is_fixed(node.name):
        return Role.ORDINARY
    return Role.MANAGED


def _role(value: Any, is_static: bool) -> Role:
    if not isinstance(value, torch.Tensor):
        return Role.PLAIN
    return Role.STATIC if is_static else Role.ORDINARY


def _marked(program: torch.fx.GraphModule) -> frozenset[int]:
    """Inputs that Dynamo noted as parameters and buffers, or the user as staying where they are."""
    nodes = program.graph.find_nodes(op="placeholder")
    return frozenset(
        at for at, node in enumerate(nodes) if (node.meta.get("tensor_dict") or {}).get(_STATIC_MARK) is not None
    )
