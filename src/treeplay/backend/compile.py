"""The way of a traced graph, every stage once and in order.

    shapes ─▶ passes before autograd ─▶ sizes ─▶ patterns ─▶ wrap
    wrap ┬▶ joint passes ─▶ split ┬▶ passes after autograd ─▶ inner compiler
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

from treeplay.backend.job import Job
from treeplay.backend.options import Options, current, overridden, using
from treeplay.backend.passes import children, run_before_autograd
from treeplay.backend.patterns import with_patterns
from treeplay.backend.roles import argument_names, argument_roles
from treeplay.backend.shapes import Program, normalised
from treeplay.backend.sizes import has_symbols, with_known_sizes
from treeplay.backend.surroundings import undisturbed
from treeplay.backend.traceable import traceable
from treeplay.errors import Refusal, Unrecorded
from treeplay.generated import hide_from_dynamo
from treeplay.wrap.aot import wrap_function


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

    is_dynamic = has_symbols(inputs)

    def compile_sized(inputs: Sequence[Any]) -> Callable[..., Any]:
        with undisturbed(), using(options):
            return _wrapped(program, inputs, options, is_dynamic=is_dynamic)

    def compile_patterns(inputs: Sequence[Any]) -> Callable[..., Any]:
        return with_patterns(inputs, compile_sized)

    return with_known_sizes(inputs, compile_patterns, most=options.most_sizes)


def _wrapped(program: Program, inputs: Sequence[Any], options: Options, *, is_dynamic: bool) -> Callable[..., Any]:
    """The program behind its wrapper; one that cannot be wrapped runs as it is, and the reason is warned."""
    source = traceable(program)
    roles = argument_roles(program, inputs, held=len(source.held))
    names = argument_names(program, inputs, held=source.names)
    job = Job(options, roles, names, is_dynamic=is_dynamic)
    try:
        is_checked = options.inner == "aten"
        compiled = wrap_function(
            source.function, [*source.held, *inputs], job.compilers(), is_checked=is_checked, names=names
        )
    except Unrecorded:
        raise
    except Refusal as refusal:
        job.refused(refusal.reason)
        warnings.warn(f"treeplay runs a graph uncompiled: {refusal}", stacklevel=2)
        uncompiled = _owning(job, lambda *args: program(*args))
        uncompiled.is_uncompiled = True  # type: ignore[attr-defined]
        return uncompiled
    held = source.held

    def call(*args: Any) -> tuple[Any, ...]:
        return tuple(compiled([*held, *args]))

    return _owning(job, call)


def _owning(job: Job, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, as long as which the accounts of its graphs live; Dynamo leaves it alone."""
    hide_from_dynamo(call, with_callees=True)
    call.job = job  # type: ignore[attr-defined]
    return call


def copy_of(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph of the same parameters that can be rewritten without a mark on `module` or its child graphs."""
    twin = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    twin.meta.update(module.meta)
    for name, child in list(children(twin)):
        twin.set_submodule(name, copy_of(child))
    return twin
