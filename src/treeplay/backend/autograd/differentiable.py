"""Wraps the flat function of a differentiable program with the compilers of this backend."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.backend.autograd.keeping import keep_for_backward
from treeplay.backend.autograd.partition import decompositions, splitter
from treeplay.backend.autograd.saved import least_memory
from treeplay.backend.job import Job, surrounded
from treeplay.backend.options import Options
from treeplay.backend.surroundings import undisturbed
from treeplay.settings import settings
from treeplay.torch_seam import partition
from treeplay.torch_seam.modes import DisableTorchFunction
from treeplay.trace.rerun import Rerun
from treeplay.values.captured import Role
from treeplay.values.signature import Argument, Input
from treeplay.wrap.aot import Compilers, wrap_function


class Differentiable(Job):
    """The compile of a program whose results the caller differentiates."""

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """One compiler at a time in the process; operators as they are need none, and do not wait for one in the background."""
        return surrounded() if self.options.inner == "aten" else super().alone()

    def forward_options(self, module: torch.fx.GraphModule) -> Options:
        """The options to compile a forward under: one with operators that have to be told what to keep runs as it is."""
        return dataclasses.replace(self.options, inner="aten") if keep_for_backward(module) else self.options


def wrap_flat(
    function: Callable[..., Any], samples: Sequence[torch.Tensor], lowering: str, inputs: Sequence[Input]
) -> Any:
    """`function` of the tensors that `inputs` are, behind its wrapper, its graphs lowered by `lowering`.

    That is "inductor" or "aten". The callable's `.launch_facts` tell how a device launches it, its `.plain_calls` which calls
    launched nothing. Raises `Refusal`.
    """
    return wrap_by(Differentiable(*task_of(lowering, inputs)), function, samples, lowering)


def task_of(lowering: str, inputs: Sequence[Input]) -> tuple[Options, list[Role], list[str]]:
    """What a job is made of: options, the roles of the inputs and their names."""
    split = least_memory if lowering == "inductor" else partition.keep_all
    options = Options(inner=lowering, partition=split, eager_random=settings.eager_random)
    roles = [Role.ORDINARY if isinstance(item.source, Argument) else Role.STATIC for item in inputs]
    return options, roles, [str(item) for item in inputs]


def wrap_by(job: Differentiable, function: Callable[..., Any], samples: Sequence[torch.Tensor], lowering: str) -> Any:
    """`function` behind its wrapper, whose graphs `job` compiles: see `wrap_flat`."""
    compilers = dataclasses.replace(job.compilers(), is_guarded=False)
    with undisturbed():
        again: dict[str, Any] = {}
        if isinstance(function, Rerun):
            again = {"repeat": function.repeated(is_exact=lowering == "aten"), "read_again": function.read_again()}
        call = wrap_function(function, samples, _unwatched(compilers), **again)
    call.launch_facts = job.launch_facts  # type: ignore[attr-defined]
    call.plain_calls = job.plain_calls  # type: ignore[attr-defined]
    return call


def trace_flat(
    function: Callable[..., Any], samples: Sequence[torch.Tensor], lowering: str, inputs: Sequence[Input]
) -> Any:
    """The same without compiling: to learn whether `function` can be wrapped, and what its backward gives."""

    def uncompiled(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return module

    options = Options(inner=uncompiled, partition=partition.keep_all)
    compilers = Compilers(uncompiled, uncompiled, uncompiled, splitter(options), decompositions(options))
    with undisturbed():
        return wrap_function(function, samples, _unwatched(compilers))


def _unwatched(compilers: Compilers) -> Compilers:
    """Compilers that no function mode looks at: the one that is there while a program is traced is none of theirs."""

    def unwatched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with DisableTorchFunction():
                return function(*args, **kwargs)

        return call

    return dataclasses.replace(
        compilers,
        forward=unwatched(compilers.forward),
        backward=unwatched(compilers.backward),
        inference=unwatched(compilers.inference),
        partition=unwatched(compilers.partition),
    )
