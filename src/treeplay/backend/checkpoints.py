"""Checkpoints in captured graphs: what they are in a graph that is called as it is, and not traced.

    wrap_body, x  ─▶  torch's operator    for a trace: it leaves the random state alone, which the trace takes care of
                  ─▶  `checkpoint`        for a call: the backward draws again what the forward drew

Called by itself, the operator would have the backward draw other numbers than the forward, and so give wrong gradients.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import checkpoint

from treeplay.backend.passes import copy_of
from treeplay.backend.recording.examine import calls, nested_graphs
from treeplay.backend.shapes.flat import Program
from treeplay.codegen import hide_from_dynamo
from treeplay.torch_seam.checkpoints import CHECKPOINTED, CONTEXTS_OF_CHECKPOINT


def with_real_checkpoints(program: Program) -> Program:
    """`program` for calls: a copy in which checkpoints are those of eager, if there are any."""
    if not isinstance(program, torch.fx.GraphModule) or not calls(program, CHECKPOINTED):
        return program
    twin = copy_of(program)
    for part in nested_graphs(twin):
        for node in list(part.graph.find_nodes(op="call_function", target=CHECKPOINTED)):
            node.target = _checkpointed
        part.recompile()
    return twin


def _checkpointed(body: torch.fx.GraphModule, *args: Any, **options: Any) -> Any:
    if CONTEXTS_OF_CHECKPOINT in body.meta:
        options["context_fn"] = body.meta[CONTEXTS_OF_CHECKPOINT]
    # Dynamo captures no other kind as what it is: a reentrant one has the same gradients.
    return checkpoint(partial(_run, body), *args, **options | {"use_reentrant": False})


def _run(body: torch.fx.GraphModule, *args: Any) -> Any:
    return body.forward(*args)


hide_from_dynamo(_run, with_callees=True)  # a backward that Dynamo looks at runs it too
