"""Graphs with symbolic sizes on the CPU: compiled once, for all sizes that Dynamo lets them be called with.

graph, while Dynamo captures it ─ traced with its symbols ─▶ what is found ─┬▶ plain: compiled with its symbols
                                                                            └▶ else None: compiled for each set of sizes

The trace and the compiler ask questions of the symbols (is this one larger than that?), and the answers become guards of
Dynamo's, which compiles anew where they do not hold. So this can only be done while Dynamo captures the graph.

Plain is an inference graph that writes none of its inputs and whose results are new tensors and numbers: then a call needs
to know no layout. On a GPU each set of sizes has a recording of its own anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.backend.job import Job
from treeplay.backend.options import Options
from treeplay.backend.recording.examine import check_traceable
from treeplay.backend.recording.recorded import draws_random_numbers
from treeplay.backend.recording.roles import argument_names, argument_roles
from treeplay.backend.traceable import Traceable, traceable
from treeplay.backend.wrapped import behind, conditions_on_kernels
from treeplay.codegen.compiler import find_compiler
from treeplay.errors import InternalError, LoweringError, Refusal, Unrecorded
from treeplay.observe import counters
from treeplay.observe.events import log_event
from treeplay.observe.internal import tell_internal
from treeplay.sandbox.boundary import Boundary
from treeplay.torch_seam import context as torch_context
from treeplay.torch_seam import modes
from treeplay.torch_seam.aot import Traced, is_new
from treeplay.torch_seam.flags import set_grad_enabled
from treeplay.torch_seam.symbols import has_example
from treeplay.torch_seam.tensors import storage_of
from treeplay.values.output import Fresh
from treeplay.wrap.aot.calls.first_call import first_call
from treeplay.wrap.aot.compilers import ARGUMENT, VISIBLE, DirectCall
from treeplay.wrap.aot.emit.load import load_call
from treeplay.wrap.aot.plan.facts import CallPlan
from treeplay.wrap.aot.tracing.capture import captured
from treeplay.wrap.aot.tracing.findings import TraceFindings

_TELLS_AUTOGRAD = ("requires_grad_", "detach_", "share_memory_")


def for_any_size(program: Any, inputs: Sequence[Any], options: Options) -> Callable[..., Any] | None:
    """The program compiled for all sizes; None where it is to be compiled for each set of sizes. Calls under modes that it does
    not fit go on with what is put in its list `for_others`."""
    why: str | None = None
    try:
        with Boundary("compiling a graph for all sizes", reasons=(LoweringError,)):
            if not _may_be_plain(program, inputs, options):
                return None
            check_traceable(program, inputs)
            source = traceable(program)
            job = _job(program, inputs, options, source)
            given = [*source.held, *inputs]
            with captured(source.function, given, job.compilers().decompositions, names=job.names) as (traced, seen):
                why = why_not_plain(traced, seen)
                if why is None:
                    return _compiled(program, source, traced, job)
    except Unrecorded:  # a refusal too, but one that the user wants raised
        raise
    except (Refusal, LoweringError) as reason:
        why = str(reason).splitlines()[0]
    except InternalError as error:
        tell_internal(error, "a graph of torch.compile")
        why = str(error).splitlines()[0]
    counters.add("sizes", "not for all at once")
    log_event("recordings", f"a graph of torch.compile is compiled for each set of sizes: {why}")
    return None


def _job(program: torch.fx.GraphModule, inputs: Sequence[Any], options: Options, source: Traceable) -> Job:
    roles = argument_roles(program, inputs, held=len(source.held))
    names = argument_names(program, inputs, held=source.names)
    return Job(options, roles, names, is_dynamic=True, is_for_any_size=True)


def _compiled(program: torch.fx.GraphModule, source: Traceable, traced: Traced, job: Job) -> Callable[..., Any]:
    """The call around the compiled graph, as the wrap stage makes it of a plan without special cases."""
    compilers, count = job.compilers(), len(traced.facts.output_info)
    for at, node in enumerate(traced.graph.graph.find_nodes(op="placeholder")):
        node.meta[ARGUMENT] = at
    traced.graph.graph.output_node().meta[VISIBLE] = tuple(range(count))
    instead = first_call(traced.graph, alias_check=compilers.alias_check, has_wrappers=False)
    with torch.no_grad():
        run = compilers.inference(traced.graph, traced.inputs)
    plan = CallPlan(
        arguments=job.names,
        copies=(),
        apart=None,
        writes=(),
        touched=(),
        results=tuple(map(Fresh, range(count))),
        values=count,
        node=None,
        grad_mode_after=None,
        inputs=tuple(range(len(job.names))),
        is_guarded=compilers.is_guarded,
    )
    modes = conditions_on_kernels(program)
    direct = DirectCall(tuple(source.held), program.forward, lambda: job.can_be_taken_back, modes=modes)
    compiled = load_call(plan, run, instead=instead, direct=direct)
    counters.add("traces", "ok")
    counters.add("sizes", "compiled for all")
    return behind(job, compiled, direct)


def _may_be_plain(program: Any, inputs: Sequence[Any], options: Options) -> bool:
    """What can be told before anything is traced. A user's own passes, compilers and decompositions see known sizes."""
    is_ours = options.inner == "inductor" and not (options.joint or options.after_autograd or options.decompositions)
    if not is_ours or not isinstance(program, torch.fx.GraphModule) or find_compiler().path is None:
        return False
    tensors = [
        *program.parameters(),
        *program.buffers(),
        *(value for value in inputs if isinstance(value, torch.Tensor)),
    ]
    if any(modes.is_wrapper(value) or value.device.type != "cpu" for value in tensors):
        return False
    if not torch_context.captures_with(inputs) or not all(map(has_example, inputs)):
        return False
    is_off_inside = any(program.graph.find_nodes(op="call_function", target=set_grad_enabled))
    return is_off_inside or not (torch.is_grad_enabled() and any(value.requires_grad for value in tensors))


def why_not_plain(traced: Traced, seen: TraceFindings) -> str | None:
    """What a call would have to do beside the graph; None for nothing."""
    facts = traced.facts
    if traced.is_joint or traced.subclasses is not None or facts.tokens:
        return "it has gradients, side effects, or tensors made of others"
    if draws_random_numbers(traced.graph, drops_none=False):
        return "it draws random numbers"
    if seen.touched or seen.reshaped or seen.rebased or seen.grad_mode_after is not None:
        return "it changes an argument or the grad mode"
    if any(info.mutates_data or info.mutates_metadata for info in facts.input_info):
        return "it writes an argument"
    if any(name in _TELLS_AUTOGRAD for name, _ in seen.writes):
        return "it changes how autograd sees a tensor"
    if seen.again or seen.own or not all(map(is_new, facts.output_info)) or _share_memory(traced.graph):
        return "its results share memory with each other or with arguments"
    return None


def _share_memory(module: torch.fx.GraphModule) -> bool:
    """Whether two results, or a result and an input, lie in one storage, or a result is an input's number."""
    results: Any = module.graph.output_node().args[0]
    nodes = [*module.graph.find_nodes(op="placeholder"), *(part for part in results if isinstance(part, torch.fx.Node))]
    values = [node.meta.get("val") for node in nodes]
    storages = [storage_of(value) for value in values if isinstance(value, torch.Tensor)]
    return len(set(storages)) < len(storages)
