"""How a joint graph becomes forward and backward: joint passes first, then the split, then no views are saved."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.backend.autograd.saved import least_memory
from treeplay.backend.autograd.saved_views import without_saved_views
from treeplay.backend.numbers import save_numbers_as_tensors, tensors_for_numbers
from treeplay.backend.options import Options
from treeplay.backend.passes import run_joint
from treeplay.graph_check import check_module
from treeplay.sandbox.boundary import users_own
from treeplay.torch_seam import partition as torch_partition
from treeplay.torch_seam import tensors as torch_tensors
from treeplay.torch_seam import trees as pytree
from treeplay.torch_seam.schemas import is_random

_OWN = (torch_partition.min_cut, torch_partition.keep_all, least_memory)
Splitter = Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]]


def splitter(options: Options) -> Splitter:
    """The split under `options`: the caller's own is given the same arguments as torch's.

    Random numbers that the backward needs again it draws again: from the stored state of the generator where the
    forward has to draw the very numbers that eager would, else from generators of its own, which a recording can hold.
    """
    split = options.partition or torch_partition.min_cut

    def partition(
        joint: torch.fx.GraphModule, inputs: Sequence[Any], **known: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        _act_where_called(joint.graph)  # first: what a pass adds tells nothing of where it belongs
        joint = run_joint(joint, pytree.tree_leaves(inputs), options.joint)
        _take_out_unused(joint.graph)
        if options.inner == "inductor":
            tensors_for_numbers(joint)
            check_module(joint, "numbers became tensors")
        is_eager = options.inner != "inductor" or options.eager_random
        with (
            torch_partition.stored_random_states() if is_eager else contextlib.nullcontext(),
            contextlib.nullcontext() if split in _OWN else users_own(),
        ):
            forward, backward = split(joint, inputs, **known)
        _check(forward, backward, after="the split")
        save_numbers_as_tensors(forward, backward, returned=known["num_fwd_outputs"])
        without_saved_views(forward, backward, returned=known["num_fwd_outputs"])
        _check(forward, backward, after="views were no longer saved")
        return forward, backward

    return partition


def _take_out_unused(graph: torch.fx.Graph) -> None:
    """Give each operator of several results, none of which is used, a user: torch's split takes it for a tensor else.

    Such an operator is there for what it does: it draws random numbers, or checks."""
    for node in list(graph.nodes):
        if not node.users and isinstance(node.meta.get("val"), (list, tuple)) and node.meta["val"]:
            with graph.inserting_after(node):
                taken = graph.call_function(operator.getitem, (node, 0))
            taken.meta.update(node.meta, val=node.meta["val"][0])


def _act_where_called(graph: torch.fx.Graph) -> None:
    """Mark what is there for what it does, be it used or not, for the direction in which the program calls it: a split goes by
    what a node depends on. It would have the forward draw what a custom function's backward draws, which depends on no
    gradient: other numbers, at another time. And what nobody uses it would have both directions do."""
    for node in graph.nodes:
        if node.op != "call_function" or (node.users and not is_random(node.target)):
            continue
        if torch_partition.is_of_backward(node):
            torch_partition.keep_in_backward(node)
        elif not node.users:
            torch_partition.keep_in_forward(node)


def _check(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, *, after: str) -> None:
    check_module(forward, f"{after} (forward)")
    check_module(backward, f"{after} (backward)")


def decompositions(options: Options) -> dict[Any, Callable[..., Any]] | None:
    """The operators to take apart while tracing: the caller's own, else those that the inner compiler wants taken apart."""
    if options.decompositions is not None:
        return dict(options.decompositions)
    if options.inner != "inductor":
        return None
    from treeplay.lower.inductor import own_lowerings

    table = own_lowerings.inductor_decompositions(eager_random=options.eager_random)
    return table | {torch.ops.aten.cat.default: _cat(table[torch.ops.aten.cat.default])}


def _cat(taken_apart: Callable[..., Any]) -> Callable[..., Any]:
    """What `cat` is taken apart into, but that one tensor alone comes out as `cat` lays it out."""

    def cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
        result = taken_apart(tensors, dim)
        if not isinstance(result, torch.Tensor):
            return result
        return result.clone(memory_format=torch_tensors.suggested_format(result))

    return cat
