"""The split of a joint graph into a forward and a backward."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy


def min_cut(joint: torch.fx.GraphModule, inputs: Sequence[Any], **known: Any) -> tuple[Any, Any]:
    """Split a joint graph so that little has to be saved: what is cheap to compute is computed again in the backward. That puts
    the backward into another order, and drops what nobody uses: one that acts is split the other way."""
    if any(map(is_kept_in_backward, joint.graph.nodes)):
        return _by_default(joint, inputs, **known)
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **known)
    return forward, backward


def stored_random_states() -> contextlib.AbstractContextManager[Any]:
    """While this lasts, a split stores states of the default generators for random numbers that are drawn again."""
    without_pairs: contextlib.AbstractContextManager[Any] = functorch_config.patch(
        graphsafe_rng_functionalization=False
    )
    return without_pairs


def keep_all(joint: torch.fx.GraphModule, inputs: Sequence[Any], **known: Any) -> tuple[Any, Any]:
    """Split a joint graph so that nothing is computed twice: what the backward reads is saved, as eager saves it."""
    forget_policies(joint.graph)
    return _by_default(joint, inputs, **known)


def _by_default(joint: torch.fx.GraphModule, inputs: Sequence[Any], **known: Any) -> tuple[Any, Any]:
    known.pop("static_lifetime_input_indices", None)  # what is kept does not depend on it
    forward, backward = default_partition(joint, inputs, **known)
    return forward, backward


def forget_policies(graph: torch.fx.Graph) -> None:
    """Have a split go by no selective checkpoint's policy. Of a checkpoint that Dynamo has not seen, it notes no number at what
    it computes, and torch's splits compare these."""
    for node in graph.nodes:
        if node.meta.get(_POLICY) in _RECOMPUTED:
            del node.meta[_POLICY]
        node.meta.pop(_CHECKPOINT, None)


_POLICY, _CHECKPOINT = "recompute", "ac_graph_id"
_RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
_TAG = "partitioner_tag"
_KEPT_IN_FORWARD, _KEPT_IN_BACKWARD = "must_be_in_forward", "must_be_in_backward"


def is_of_backward(node: torch.fx.Node) -> bool:
    """Whether a node of a joint graph, as traced, is of the backward. All nodes of the forward are tagged when that ends; of
    the backward, those are not that Dynamo found in a custom function."""
    return node.meta.get(_TAG) not in ("is_forward", _KEPT_IN_FORWARD)


def keep_in_forward(node: torch.fx.Node) -> None:
    """Have a split leave a node in the forward, also if nothing there uses it."""
    node.meta[_TAG] = _KEPT_IN_FORWARD


def keep_in_backward(node: torch.fx.Node) -> None:
    """Have a split leave a node in the backward, also if it could be computed before."""
    node.meta[_TAG] = _KEPT_IN_BACKWARD


def is_kept_in_backward(node: torch.fx.Node) -> bool:
    """Whether a split was told to leave a node in the backward."""
    return bool(node.meta.get(_TAG) == _KEPT_IN_BACKWARD)
