"""A captured program behind its wrapper, with the job that compiles its graphs."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.backend.checkpoints import with_real_checkpoints
from treeplay.backend.job import Job
from treeplay.backend.numbers import KnownNumbers
from treeplay.backend.options import Options
from treeplay.backend.recording.examine import called_by, check_traceable, has_custom_functions
from treeplay.backend.recording.roles import argument_names, argument_roles
from treeplay.backend.shapes.flat import Program
from treeplay.backend.traceable import traceable, with_numbers
from treeplay.codegen import hide_from_dynamo
from treeplay.errors import InternalError, Refusal, TreeplayError, Unrecorded
from treeplay.observe import counters
from treeplay.sandbox.boundary import Boundary
from treeplay.torch_seam.checkpoints import ends_recomputation
from treeplay.torch_seam.dynamo import GUARDS_FROZEN_PARAMETERS
from treeplay.torch_seam.symbols import asks_for_value
from treeplay.values.refusal import Reason
from treeplay.wrap.ambience import Ambience
from treeplay.wrap.aot import wrap_function
from treeplay.wrap.aot.compilers import DirectCall


def wrapped(
    captured: Program,
    inputs: Sequence[Any],
    options: Options,
    *,
    is_dynamic: bool,
    numbers: Collection[int],
    known: KnownNumbers,
    values: Mapping[int, float],
) -> Callable[..., Any]:
    """The program behind its wrapper; one that cannot be wrapped runs as it is, and the reason is warned.

    `numbers`: positions of inputs that are numbers, which calls of the result do not change. `values` of inputs that are read
    as numbers are those of each call of the result, as far as they are `known`."""
    program = known.written_into(captured, values)
    source = traceable(program)
    function = with_numbers(source.function, {len(source.held) + at: inputs[at] for at in numbers})
    roles = argument_roles(program, inputs, held=len(source.held))
    names = argument_names(program, inputs, held=source.names)
    job = Job(options, roles, names, is_dynamic=is_dynamic)
    called = with_real_checkpoints(program)
    as_it_is = called.forward if isinstance(called, torch.fx.GraphModule) else called  # it prints what fails
    frozen = () if GUARDS_FROZEN_PARAMETERS or not torch.is_grad_enabled() else frozen_parameters(inputs)
    direct = DirectCall(
        tuple(source.held), as_it_is, lambda: _may_run_again(job), frozen, conditions_on_kernels(program)
    )
    compilers = dataclasses.replace(job.compilers(), direct=direct)
    if has_custom_functions(program):
        why = "Dynamo's form of a custom autograd function leaves out what its backward depends on"
        compilers = dataclasses.replace(compilers, plain=None, why_once=why)
    try:
        is_checked = options.inner == "aten"
        with Boundary("compiling a graph", reasons=(TreeplayError,)):
            check_traceable(program, inputs)
            compiled: Any = wrap_function(
                function, [*source.held, *inputs], compilers, is_checked=is_checked, names=names
            )
    except Unrecorded:  # a refusal too, but one that the user wants raised
        raise
    except Refusal as refusal:
        if asks_for_value(refusal) and known.ask(program, source.stopped_at(), values):
            return wrapped(
                captured, inputs, options, is_dynamic=is_dynamic, numbers=numbers, known=known, values=values
            )
        counters.add("traces", "refused")
        return unwrapped(called, options, refusal.reason, job)
    except InternalError as error:
        counters.add("traces", "failed")
        job.broken(error)
        return uncompiled(job, called)
    counters.add("traces", "ok")
    return behind(job, compiled, direct)


def conditions_on_kernels(program: Any) -> tuple[tuple[str, dict[str, Any]], ...]:
    """The modes of this moment that choose the kernels of what a captured graph calls: see `DirectCall`."""
    return tuple(Ambience.now().conditions_on_kernels(called_by(program)))


def behind(job: Job, compiled: Any, direct: DirectCall) -> Callable[..., Any]:
    """What was compiled, with the lists of what serves calls that do not fit it."""
    compiled.others, compiled.for_others = direct.others, direct.for_others
    return owning(job, compiled, fits_every_call=compiled.plan.fits_every_call and direct.fits_every_call)


def _may_run_again(job: Job) -> bool:
    """Whether a call that has just raised may run as it is: not where what is around it was told enough and ends it."""
    return job.can_be_taken_back and not ends_recomputation(sys.exc_info()[1])


def frozen_parameters(inputs: Sequence[Any]) -> tuple[int, ...]:
    """The positions of parameters that need no gradient."""
    return tuple(
        at for at, value in enumerate(inputs) if isinstance(value, torch.nn.Parameter) and not value.requires_grad
    )


def unwrapped(program: Program, options: Options, reason: Reason, job: Job | None = None) -> Callable[..., Any]:
    """The program as it is, with the reason reported and warned."""
    job = job or Job(options, (), ())
    job.refused(reason)
    warnings.warn(f"treeplay runs a graph uncompiled: {Refusal(reason)}", stacklevel=2)
    return uncompiled(job, program)


def uncompiled(job: Job, program: Program) -> Callable[..., Any]:
    """The program as it is, in the place of what would have been compiled."""
    called = with_real_checkpoints(program)
    call = owning(job, lambda *args: called(*args), fits_every_call=True)
    call.is_uncompiled = True  # type: ignore[attr-defined]
    return call


def owning(job: Job, call: Callable[..., Any], *, fits_every_call: bool) -> Callable[..., Any]:
    """`call`, as long as which the accounts of its graphs live; Dynamo leaves it alone."""
    hide_from_dynamo(call, with_callees=True)
    call.job = job  # type: ignore[attr-defined]
    call.fits_every_call = fits_every_call  # type: ignore[attr-defined]
    return call
