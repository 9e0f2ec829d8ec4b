"""A compiled graph that nothing keeps from being recorded: on a GPU it becomes a recording, on the CPU it is one already.

What is compiled for the CPU takes tensors where they lie and returns new ones: there is no launch to save.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx

from treeplay.backend.account import Account
from treeplay.backend.autograd.keeping import Keeping
from treeplay.backend.recording.compiled_graph import CompiledGraph
from treeplay.backend.recording.replayed import Replayed
from treeplay.device.protocol import Device
from treeplay.device.registry import device_for
from treeplay.lower.births import ToldArtifact
from treeplay.torch_seam import schemas
from treeplay.torch_seam.operators import HigherOrderOperator, OpOverload
from treeplay.values.boxed import Boxed
from treeplay.values.captured import Role


def recorded(
    run: Boxed,
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    roles: Sequence[Role],
    account: Account,
) -> Boxed:
    """The graph behind a recording that its first calls make; on the CPU the graph as it is compiled."""
    devices = {use.device for use in account.facts.devices if use.device.type == "cuda"}
    if not devices:
        return run
    return recorded_on(device_for(devices.pop()), run, module, roles, account)


def recorded_on(
    device: Device, run: Boxed, module: torch.fx.GraphModule, roles: Sequence[Role], account: Account
) -> Boxed:
    """The graph behind a recording of `device`."""
    facts, artifact = account.facts, ToldArtifact(run)
    graph = CompiledGraph(
        artifact,
        f"graph {account.graph_id} {account.direction}",
        tuple(item.name for item in facts.inputs),
        static=frozenset(at for at, role in enumerate(roles) if role is Role.STATIC),
        written=frozenset(at for at, item in enumerate(facts.inputs) if item.is_written),
        draws=draws_random_numbers(module),
        tells=artifact.telling,
        inner=facts.inner,
    )
    replayed = Replayed(graph, device, account.recorded, account.failed, account.forgotten)
    account.follow(replayed)
    return replayed


def draws_random_numbers(module: torch.fx.GraphModule, *, drops_none: bool = True) -> bool:
    """Whether some operator of the graph, or of a child graph, draws; what torch does not say of one counts as yes, and so does
    attention that drops nothing out, unless it counts as no (`drops_none=False`), as it is on the CPU."""
    parts = [part for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    nodes = [node for part in parts for node in part.graph.nodes]
    return any(_draws(node, drops_none=drops_none) for node in nodes)


def _draws(node: torch.fx.Node, *, drops_none: bool) -> bool:
    if node.op != "call_function":
        return node.op == "call_method"
    target = node.target.op if isinstance(node.target, Keeping) else node.target
    if isinstance(target, OpOverload):
        return schemas.is_random(target) if drops_none else schemas.draws(target, node.args, node.kwargs)
    return isinstance(target, HigherOrderOperator)
