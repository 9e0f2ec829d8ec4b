"""What a backward keeps from its forward: no tensor of the caller's that eager would not keep.

A backward that reads an argument or a result which eager does not keep would refuse a change in place that eager allows.
So the split with the least memory is taken where it keeps no more of these than eager, else the one that keeps what eager
keeps.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam import partition
from treeplay.torch_seam.fx import base_node, lazy_module

Split = tuple[torch.fx.GraphModule, torch.fx.GraphModule]


def least_memory(joint: torch.fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int, **known: Any) -> Split:
    """The split of least memory that keeps no argument and no result which eager does not."""
    # What a selective checkpoint saves is there for eager's backward: this one computes again what takes the least memory.
    partition.forget_policies(joint.graph)
    twin = lazy_module(joint, copy.deepcopy(joint.graph))
    as_eager = partition.keep_all(twin, inputs, num_fwd_outputs=num_fwd_outputs, **known)
    least = partition.min_cut(joint, inputs, num_fwd_outputs=num_fwd_outputs, **known)
    allowed = callers_tensors(as_eager[0], num_fwd_outputs)
    return least if callers_tensors(least[0], num_fwd_outputs) <= allowed else as_eager


def callers_tensors(forward: torch.fx.GraphModule, results: int) -> set[str]:
    """The names of the arguments and results among what a forward saves, views of them included."""
    outputs: Any = forward.graph.output_node().args[0]
    returned = {base_node(node) for node in outputs[:results] if isinstance(node, torch.fx.Node)}
    saved = {base_node(node) for node in outputs[results:] if isinstance(node, torch.fx.Node)}
    return {node.name for node in saved if node.op == "placeholder" or node in returned}
