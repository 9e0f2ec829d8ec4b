"""Flat function → compiled function that acts like it: trace, plan, compile, emit, load."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from treeplay.errors import Refusal, UsageError
from treeplay.graph_check import check_module
from treeplay.observe.lines import is_users
from treeplay.torch_seam import fakes, flags
from treeplay.torch_seam.aot import Traced, is_written_by_graph
from treeplay.torch_seam.flags import AutocastDtypes
from treeplay.trace.call import home_of
from treeplay.wrap.aot.calls.again import HigherDerivatives, Repeat, fingerprint
from treeplay.wrap.aot.calls.checks import check_of
from treeplay.wrap.aot.calls.surroundings import refuse_backward_states
from treeplay.wrap.aot.compiled_call import load_inference, load_training
from treeplay.wrap.aot.compilers import Compilers
from treeplay.wrap.aot.plan.arrange import Arrangement, RunNotes, arrange, needs_arrangement
from treeplay.wrap.aot.plan.layouts import reshaped_and_back
from treeplay.wrap.aot.plan.planning import plan_call
from treeplay.wrap.aot.plan.shared_results import with_common_values, with_own_versions
from treeplay.wrap.aot.plan.subclass_rules import in_user_terms
from treeplay.wrap.aot.tracing.capture import captured
from treeplay.wrap.aot.tracing.findings import TraceFindings, refusal_to_wrap
from treeplay.wrap.aot.tracing.later import forward_writes, take_writes_out
from treeplay.wrap.aot.tracing.probe import apart, probe_writes

_NONE: Mapping[int, str] = MappingProxyType({})


def wrap_function(
    function: Callable[..., Any],
    samples: Sequence[Any],
    compilers: Compilers,
    *,
    is_checked: bool = False,
    names: Sequence[str] | None = None,
    repeat: Repeat | None = None,
    read_again: Mapping[int, str] = _NONE,
) -> Callable[[list[Any]], list[Any]]:
    """Compile `function`, which takes and returns flat tensors, for calls like `samples`; the result is boxed.

    `names` of the arguments are otherwise those of the function. `is_checked`: each call is first compared with the
    samples, which costs a little; front ends that do that do not need it. `repeat` gives the function once more where it may
    have changed meanwhile; otherwise it is called again itself where its backward is differentiated. `read_again`: the inputs
    that eager's backward reads, and what they are called: it refuses to run if one has been written to since the call.
    `.plan` is what a call does, `.source` the text of the call function, `.sources` that of every generated function,
    `.backward` what runs when autograd asks (None in inference). What cannot be done is a `Refusal`.
    """
    names = _names_of(function, len(samples)) if names is None else tuple(names)
    try:
        task = _task(function, samples, names, compilers, is_checked=is_checked, repeat=repeat)
        while True:  # until a trace loses nothing
            with task.traced() as trace:
                better = _better(task, trace)
                if better is None:
                    built: Callable[[list[Any]], list[Any]] = _build(task, trace, read_again)
                    return built
            task = better  # outside of the trace, whose modes would see what the next one makes
    except Refusal as error:
        raise in_user_terms(_located(error, function)) from error.__cause__  # it may be `error` itself


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    """A function to wrap, and how it is traced.

    `is_apart`: inputs that still share a storage do not overlap, or nobody writes them; torch, which would merge some of
    them, sees each in a storage of its own. `writes_inside`: whether the graph does what writes it can itself; None leaves
    that to torch."""

    function: Callable[..., Any]
    samples: Sequence[Any]
    names: tuple[str, ...]
    compilers: Compilers
    arrangement: Arrangement
    is_apart: bool
    is_checked: bool
    repeat: Repeat | None
    awaited: tuple[int, ...]
    writes_inside: bool | None = None

    @contextlib.contextmanager
    def traced(self) -> Iterator[_FunctionTrace]:
        """The function, traced with inputs in the place of its arguments."""
        noted, given = RunNotes(), self.arrangement.samples(self.samples)
        inputs = apart(given) if self.is_apart else given
        with self._captured(inputs, noted) as (traced, seen):
            check_module(traced.graph, "the trace")
            yield _FunctionTrace(traced, seen, noted, given, inputs)

    def _captured(
        self, inputs: Sequence[Any], noted: RunNotes, *, in_backward: AutocastDtypes = ()
    ) -> contextlib.AbstractContextManager[tuple[Traced, TraceFindings]]:
        count = len(self.samples)
        return captured(
            self.arrangement.adapted(self.function, noted),
            inputs,
            self.compilers.decompositions,
            writes_inside=self.writes_inside,
            names=[self.names[k] if k < count else f"base{k - count}" for k in self.arrangement.inputs],
            in_backward=in_backward,
        )

    def autocast_without_effect(self, trace: _FunctionTrace, mark: int) -> AutocastDtypes:
        """The autocast of this moment, if a backward under it would do what that of a trace with this fingerprint does."""
        if not (now := flags.autocast_dtypes()):
            return ()
        try:
            with torch.enable_grad(), self._captured(trace.inputs, RunNotes(), in_backward=now) as (traced, _):
                return now if fingerprint(traced) == mark else ()
        except Refusal:  # of a backward that can do no more there
            return ()

    def writes_in_graph(self, trace: _FunctionTrace) -> list[tuple[int, str]]:
        """Which inputs the forward writes and with which node, from a trace of a graph that does its writes itself."""
        function, decompositions = self.arrangement.adapted(self.function, RunNotes()), self.compilers.decompositions
        with captured(function, trace.inputs, decompositions, writes_inside=True) as (inside, _):
            return forward_writes(inside)


@dataclasses.dataclass(frozen=True, slots=True)
class _FunctionTrace:
    """What one trace gave: the graph and torch's facts, what was seen, and the inputs, as given and as traced."""

    traced: Traced
    seen: TraceFindings
    noted: RunNotes
    given: Sequence[Any]
    inputs: Sequence[Any]


def _task(
    function: Callable[..., Any],
    samples: Sequence[Any],
    names: tuple[str, ...],
    compilers: Compilers,
    *,
    is_checked: bool,
    repeat: Repeat | None,
) -> _Task:
    """What is to be done for `samples`, or why it cannot be."""
    refuse_backward_states(samples)
    given, samples = samples, [fakes.waited(sample) for sample in samples]
    awaited = tuple(k for k, (one, other) in enumerate(zip(given, samples, strict=True)) if one is not other)
    if any(isinstance(sample, torch.SymInt) for sample in samples):
        raise refusal_to_wrap("wrap", "a size that has no number, such as the longest row of a nested tensor", None)
    for name, sample in zip(names, samples, strict=True):
        if sample is not None and not isinstance(sample, torch.Tensor | int | float | bool):
            raise UsageError(
                f"sample input `{name}`: expected a tensor, a number or None, found {type(sample).__name__}. "
                "Fix: flatten the arguments first"
            )
    arrangement, any_write = Arrangement(len(samples)), False
    if needs_arrangement(samples):
        written, any_write = probe_writes(function, samples, names)
        arrangement = arrange(samples, names, written, any_write=any_write)
    return _Task(function, samples, names, compilers, arrangement, any_write, is_checked, repeat, awaited)


def _better(task: _Task, trace: _FunctionTrace) -> _Task | None:
    """How to trace again where this trace lost something; None if it did not."""
    traced, seen = trace.traced, trace.seen
    aliased = reshaped_and_back(traced, seen)
    # A write by the graph itself is seen by autograd, where the program's may not be, and knows no new shape.
    is_outside = any(
        is_written_by_graph(info) and (not seen.moves_version(k) or k in seen.reshaped)
        for k, info in enumerate(traced.facts.input_info)
    )
    if not aliased and not is_outside:
        return None
    return dataclasses.replace(
        task,
        arrangement=dataclasses.replace(task.arrangement, aliased=task.arrangement.aliased | aliased),
        writes_inside=False if is_outside else task.writes_inside,
    )


def _build(task: _Task, trace: _FunctionTrace, read_again: Mapping[int, str]) -> Any:
    """The compiled function: plan, take the backward's writes out, compile, emit, load."""
    traced, seen, compilers = trace.traced, trace.seen, task.compilers
    plan = plan_call(
        traced,
        seen,
        samples=trace.given,
        arguments=task.names,
        arrangement=task.arrangement,
        noted=trace.noted,
        compilers=compilers,
    )
    checks = tuple(map(check_of, task.samples)) if task.is_checked else ()
    plan = with_own_versions(with_common_values(traced, plan), seen.own_versions)
    read = tuple((k, name) for k, name in read_again.items() if k in plan.inputs)
    plan = dataclasses.replace(plan, checks=checks, awaited=task.awaited, read_again=read)
    if not traced.is_joint:
        return load_inference(traced, plan, compilers)
    again, mark = None, fingerprint(traced)
    if compilers.plain is not None:
        plain = dataclasses.replace(compilers.plain(), decompositions=compilers.decompositions)
        repeat = task.repeat or _itself(task.function)
        again = HigherDerivatives(
            repeat, wrap_function, plain, task.arrangement, mark=mark, is_fixed=task.repeat is None
        )
    late = take_writes_out(traced, plan, seen.line(), lambda: task.writes_in_graph(trace))
    check_module(traced.graph, "the backward's writes were taken out")
    return load_training(traced, seen, plan, late, compilers, again, lambda: task.autocast_without_effect(trace, mark))


def _names_of(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The function's own names of its arguments, where each has one; else numbered ones."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    return names if len(names) == len(parameters) == count else tuple(f"arg{k}" for k in range(count))


def _located(refused: Refusal, function: Callable[..., Any]) -> Refusal:
    """The refusal with a line of the user's: where nothing else is known, that where the function begins."""
    home = home_of(function)
    if refused.where is not None or home is None or not is_users(home.file):
        return refused
    return Refusal(dataclasses.replace(refused.reason, where=home))


def _itself(function: Callable[..., Any]) -> Repeat:
    return lambda inputs: contextlib.nullcontext(function)
