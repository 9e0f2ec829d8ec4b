"""Wraps the flat function of a differentiable program with the compilers of this backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree

from treeplay.backend import torch_private
from treeplay.backend.inner import Boxed, Flat, compile_inner
from treeplay.backend.metadata import refresh_layout
from treeplay.backend.options import Options, using
from treeplay.backend.partition import decompositions, splitter
from treeplay.backend.saved import least_memory
from treeplay.backend.surroundings import undisturbed
from treeplay.device.host.operators import KEEPS_FOR_BACKWARD
from treeplay.facts.captured import Direction
from treeplay.settings import settings
from treeplay.trace.torch_private import functions_unwatched
from treeplay.wrap.aot import Compilers, wrap_function
from treeplay.wrap.aot.compilers import VISIBLE


def wrap_flat(function: Callable[..., Any], samples: Sequence[torch.Tensor], lowering: str) -> Any:
    """`function` behind its wrapper, its graphs lowered by `lowering`: "inductor" or "aten". Raises `Refusal`."""
    split = least_memory if lowering == "inductor" else torch_private.keep_all
    options = Options(inner=lowering, partition=split, eager_random=settings.eager_random)
    as_they_are = compilers_for(dataclasses.replace(options, inner="aten"))
    compilers = compilers_for(options)

    def forward(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        chosen = as_they_are if keep_for_backward(module) else compilers
        return chosen.forward(module, inputs)

    with undisturbed(), using(options):
        return wrap_function(function, samples, _unwatched(dataclasses.replace(compilers, forward=forward)))


def trace_flat(function: Callable[..., Any], samples: Sequence[torch.Tensor], lowering: str) -> Any:
    """The same without compiling: to learn whether `function` can be wrapped, and what its backward gives."""

    def uncompiled(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return module

    options = Options(inner=uncompiled, partition=torch_private.keep_all)
    compilers = compilers_for(options)
    with undisturbed(), using(options):
        return wrap_function(
            function, samples, _unwatched(dataclasses.replace(compilers, forward=uncompiled, inference=uncompiled))
        )


def compilers_for(options: Options) -> Compilers:
    """What the wrap stage calls with the graphs it made. Each works under `options`, whenever it is called."""

    def compiler_of(direction: Direction) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Boxed]:
        def compile_graph(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
            with torch_private.compile_lock(), undisturbed(), using(options):
                visible = module.graph.output_node().meta.get(VISIBLE)
                if direction == "backward":
                    refresh_layout(module, inputs)  # saved tensors lie as the forward's compiler liked best
                    visible = ()
                return compile_inner(module, inputs, options, Flat(direction, visible))

        return compile_graph

    return Compilers(
        forward=compiler_of("forward"),
        backward=compiler_of("backward"),
        inference=compiler_of("inference"),
        partition=splitter(options),
        decompositions=decompositions(options),
    )


def _unwatched(compilers: Compilers) -> Compilers:
    """Compilers that no function mode looks at: the one that is there while a program is traced is none of theirs."""

    def unwatched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with functions_unwatched():
                return function(*args, **kwargs)

        return call

    return dataclasses.replace(
        compilers,
        forward=unwatched(compilers.forward),
        backward=unwatched(compilers.backward),
        inference=unwatched(compilers.inference),
        partition=unwatched(compilers.partition),
    )


def keep_for_backward(module: torch.fx.GraphModule) -> bool:
    """Make operators that keep something for the backward only where gradients are on do so; whether there are any.

    A graph runs inside of an autograd node, where they are off, and its own backward follows all the same.
    """
    found = [node for node in module.graph.nodes if node.target in KEEPS_FOR_BACKWARD]
    for node in found:
        node.target = Keeping(node.target)
    if found:
        module.recompile()
    return bool(found)


class Keeping:
    """An operator run as if gradients were needed; its results carry none."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.__name__ = self.__qualname__ = str(op).replace(".", "_")
        self.__module__ = __name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            first, *others = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, args)
            result = self.op(first.requires_grad_(), *others, **kwargs)
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result)
