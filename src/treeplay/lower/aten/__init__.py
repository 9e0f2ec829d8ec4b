"""The `aten` lowering: a traced graph → its operators in order, as they are, over memory laid out beforehand.

    Graph, ArenaPlan ─ memory ─▶ Memory ─ emit ─▶ Source ─ load ─▶ Lowered

In-place operators, views and random numbers stay what they are, so results, mutations, aliasing and random sequences
are eager's. On the host a replay allocates its outputs and what the operators in `details["allocating"]` insist on.
"""

from __future__ import annotations

import torch
import torch.fx

from treeplay.codegen import load_source
from treeplay.errors import LoweringError
from treeplay.lower.aten.emit import GraphEmitter
from treeplay.lower.aten.memory import Cells, GraphArena
from treeplay.lower.aten.numbers import NumberText
from treeplay.lower.aten.storage import Home, survey_storages
from treeplay.lower.aten.text import GraphText
from treeplay.lower.lowered import Lowered
from treeplay.values.arena import ArenaPlan


def lower_aten(graph: torch.fx.Graph, plan: ArenaPlan) -> Lowered:
    """Make the replay function of `graph` with `plan`, which `plan_arena` made of the same graph.

    Raises `LoweringError` for a graph that holds anything but ATen operators and numbers, or changes shapes in place.
    """
    layout = survey_storages(graph)
    memory, text = GraphArena.of(plan), GraphText()
    emitter = GraphEmitter(graph, layout, memory, text, NumberText(text, Cells.up_to(len(graph.nodes))))
    try:
        emitter.write()
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, LoweringError):
            raise
        raise LoweringError(f"the operators cannot be laid out: {error}") from error
    finally:
        text.forget_views()
    text.use("arena", memory.arena)
    source = text.source("aten", entry="replay")
    homes = [storage.home for storage in layout.storages]
    return Lowered(
        name="aten",
        run=load_source(source),
        scratch_bytes=plan.total_bytes + memory.extra_bytes,
        operators=text.calls,
        details={
            "arena": str(plan),
            "allocating": dict(emitter.allocating),
            "elided copies": len(layout.elided),
            "constants": homes.count(Home.CONSTANT),
        },
        source=source.text,
    )
