"""One flat graph becomes a boxed callable: passed through if it computes nothing, else given to the inner compiler."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree

from treeplay.backend import torch_private
from treeplay.backend.metadata import mode_of
from treeplay.backend.options import Options
from treeplay.backend.strides import traced_strides, with_strides
from treeplay.errors import LoweringError
from treeplay.lower.compiler import find_compiler, find_gpu_compiler
from treeplay.observe import counters, warn_once

Boxed = Callable[[list[Any]], Sequence[Any]]

_NOT_CALLS = ("placeholder", "get_attr", "output")


def compile_inner(module: torch.fx.GraphModule, inputs: Sequence[Any], options: Options) -> Boxed:
    """Compile a flat graph under `options`. Its results may be tensors, None and numbers, and stay in their places."""
    check_result(module)
    if is_empty(module):
        return boxed(module)
    with torch_private.without_autocast():  # its casts are written out, and must not be made twice
        if callable(options.inner):
            made: Boxed = options.inner(module, inputs)
            return made
        return boxed(without_views(module)) if options.inner == "aten" else _inductor(module, inputs, options)


def is_empty(module: torch.fx.GraphModule) -> bool:
    """Whether a graph calls nothing: it returns inputs, constants, or nothing at all."""
    return all(node.op in _NOT_CALLS for node in module.graph.nodes)


def check_result(module: torch.fx.GraphModule) -> None:
    """Raise unless the graph's result is a list or tuple."""
    result = module.graph.output_node().args[0]
    if not isinstance(result, (list, tuple)):
        raise LoweringError(
            f"the inner compiler takes graphs whose result is a list or tuple, found {type(result).__name__} in\n"
            f"{module.graph}"
        )


def without_views(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with its views as reshapes: torch's rules for tensors without data make some results contiguous that an
    operator leaves transposed, and no view of such a result is possible. Nothing writes to a view: the graph is functional."""
    graphs = [part for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    for part, view in itertools.product(graphs, (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)):
        for node in part.graph.find_nodes(op="call_function", target=view):
            node.target = torch.ops.aten.reshape.default
        part.recompile()
    return module


def boxed(module: torch.fx.GraphModule) -> Boxed:
    """Run a graph as it is; the arguments come in one list, which is emptied."""

    def call(args: list[Any]) -> Sequence[Any]:
        values = tuple(args)
        args.clear()
        result: Sequence[Any] = module.forward(*values)
        return result

    return call


def _inductor(module: torch.fx.GraphModule, inputs: Sequence[Any], options: Options) -> Boxed:
    device = _device_of(module, inputs)
    if (find_compiler() if device.type == "cpu" else find_gpu_compiler()).path is None:
        return boxed(module)
    from treeplay.lower import torch_private as inductor  # imports Inductor: seconds, so only when it is needed

    mode = mode_of(inputs)
    fakes = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in inputs]
    wanted = traced_strides(module)  # before Inductor rewrites the graph
    spare = torch.fx.GraphModule(module, copy.deepcopy(module.graph))  # Inductor rewrites what it is given
    try:
        run = inductor.compile_graph(module, fakes, device=device, eager_random=options.eager_random, is_small=False)
    except Exception as error:  # Inductor raises anything
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        counters.add("lowering failed", "inductor")
        warn_once(f"treeplay runs a graph of torch.compile's uncompiled, operator by operator: Inductor raised {why}")
        return boxed(spare)
    return with_strides(run, wanted)


def _device_of(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.device:
    """The accelerator that the graph runs on, else the CPU."""
    values = [*inputs, *(node.meta.get("val") for node in module.graph.nodes)]
    devices = [leaf.device for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
