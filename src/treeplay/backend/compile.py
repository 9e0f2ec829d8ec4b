"""The way of a traced graph, every stage once and in order.

    shapes ─▶ passes before autograd ─▶ sizes ─▶ wrap ┬▶ joint passes ─▶ split ┬▶ passes after autograd ─▶ inner compiler
                                                      └▶ joint passes (inference) ────┘
The backward is compiled when it is first needed, under the options of its forward.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.backend.inner import Boxed, compile_inner
from treeplay.backend.options import Options, current, overridden, using
from treeplay.backend.partition import decompositions, splitter
from treeplay.backend.passes import children, run_after_autograd, run_before_autograd, run_joint
from treeplay.backend.shapes import Program, normalised
from treeplay.backend.sizes import with_known_sizes
from treeplay.backend.surroundings import undisturbed
from treeplay.errors import Refusal
from treeplay.wrap.aot import Compilers, wrap_function


def compile_graph(
    gm: Program,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    inner: str | Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph for inputs like these; the callable takes positional inputs like the graph's. The graph stays as it is.

    `inner` is the same as `options={"inner": ...}`."""
    given = dict(options or {}) | ({} if inner is None else {"inner": inner})
    program = copy_of(gm) if isinstance(gm, torch.fx.GraphModule) else gm
    return run_stages(program, inputs, overridden(current(), given))


def backend(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What `torch.compile(program, backend="treeplay", options=...)` calls with each graph; the graph is used up."""
    return run_stages(gm, inputs, overridden(current(), options))


def run_stages(program: Program, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """The stages in order, without a mark on the caller."""
    with undisturbed(), using(options):
        return normalised(program, inputs, lambda flat, leaves: compile_flat(flat, leaves, options))


def compile_flat(program: Program, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """Compile a program with flat inputs and a flat tuple of results."""
    if isinstance(program, torch.fx.GraphModule):
        program = run_before_autograd(program, inputs, options.before_autograd)

    def compile_sized(inputs: Sequence[Any]) -> Callable[..., Any]:
        with undisturbed(), using(options):
            return _wrapped(program, inputs, options)

    return with_known_sizes(inputs, compile_sized)


def _wrapped(program: Program, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """The program behind its wrapper; one that cannot be wrapped runs as it is, and the reason is warned."""
    try:
        compiled = wrap_function(program, list(inputs), compilers_for(options))
    except Refusal as refusal:
        warnings.warn(f"treeplay runs a graph uncompiled: {refusal}", stacklevel=2)
        return program

    def call(*args: Any) -> tuple[Any, ...]:
        return tuple(compiled(list(args)))

    return call


def compilers_for(options: Options) -> Compilers:
    """What the wrap stage calls with the graphs it made. Each works under `options`, whenever it is called."""

    def after(module: torch.fx.GraphModule, inputs: Sequence[Any], is_inference: bool) -> Boxed:
        with undisturbed(), using(options):
            module = run_after_autograd(module, inputs, options.after_autograd, is_inference=is_inference)
            return compile_inner(module, inputs, options)

    def inference(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        with undisturbed(), using(options):
            return after(run_joint(module, inputs, options.joint), inputs, is_inference=True)

    def training(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        return after(module, inputs, is_inference=False)

    return Compilers(
        forward=training,
        backward=training,
        inference=inference,
        partition=splitter(options),
        decompositions=decompositions(options),
        is_guarded=True,
        alias_check=options.alias_check,
    )


def copy_of(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph of the same parameters that can be rewritten without a mark on `module` or its child graphs."""
    twin = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    twin.meta.update(module.meta)
    for name, child in list(children(twin)):
        twin.set_submodule(name, copy_of(child))
    return twin
