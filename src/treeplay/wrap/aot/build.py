"""Flat function → compiled function that acts like it: trace, plan, compile, emit, load."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import keyword
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.errors import Refusal, UsageError
from treeplay.graph_check import check_module
from treeplay.observe.lines import is_users
from treeplay.torch_seam import context as torch_context
from treeplay.torch_seam import fakes, flags
from treeplay.torch_seam.aot import Traced, is_written_by_graph
from treeplay.trace.call import home_of
from treeplay.wrap.aot.again import HigherDerivatives, Onward, Repeat, fingerprint, origins_of, why_not
from treeplay.wrap.aot.arrange import Arrangement, RunNotes, arrange, needs_arrangement
from treeplay.wrap.aot.capture import captured, refusal
from treeplay.wrap.aot.checks import check_of
from treeplay.wrap.aot.compilers import ARGUMENT, VISIBLE, Boxed, Compile, Compilers, take_one_list
from treeplay.wrap.aot.first_call import Instead, first_call
from treeplay.wrap.aot.kept import kept_inputs, overwritten_inputs
from treeplay.wrap.aot.later import forward_writes, take_out
from treeplay.wrap.aot.layouts import reshaped_and_back
from treeplay.wrap.aot.load import load_call
from treeplay.wrap.aot.node import Compiled, LazyBackward, as_it_lies
from treeplay.wrap.aot.partial import without_gradients
from treeplay.wrap.aot.plan import CallPlan, LateWrite
from treeplay.wrap.aot.planning import plan_call
from treeplay.wrap.aot.planning_node import plan_node, saved_by
from treeplay.wrap.aot.probe import apart, written_by
from treeplay.wrap.aot.random_states import generator_inputs
from treeplay.wrap.aot.redrawn import draws_of
from treeplay.wrap.aot.shared_results import with_common_values
from treeplay.wrap.aot.stashed import compute_once_what_is_stashed
from treeplay.wrap.aot.subclass_rules import explained
from treeplay.wrap.aot.surroundings import refuse_backward_states, refuse_compiled_autograd, run_in_callers_context

_TAKEN = frozenset(
    (
        *("args", "values", "mode", "replay", "ctx", "run", "grads", "strided", "missing", "call", "forward"),
        *("backward", "plain", "names", "transformed", "generators", "Tensor"),
    )
)


def wrap_function(
    function: Callable[..., Any],
    samples: Sequence[Any],
    compilers: Compilers,
    *,
    is_checked: bool = False,
    names: Sequence[str] | None = None,
    repeat: Repeat | None = None,
) -> Callable[[list[Any]], list[Any]]:
    """Compile `function`, which takes and returns flat tensors, for calls like `samples`; the result is boxed.

    `names` of the arguments are otherwise those of the function. `is_checked`: each call is first compared with the
    samples, which costs a little; front ends that do that do not need it. `repeat` gives the function once more where it may
    have changed meanwhile; otherwise it is called again itself where its backward is differentiated.
    `.plan` is what a call does, `.source` the text of the call function, `.sources` that of every generated function,
    `.backward` what runs when autograd asks (None in inference). What cannot be done is a `Refusal`.
    """
    names = usable_names(names, len(samples)) if names is not None else names_of(function, len(samples))
    arrangement, any_write = Arrangement(len(samples)), False
    try:
        refuse_backward_states(samples)
        given, samples = samples, [fakes.waited(sample) for sample in samples]
        awaited = tuple(k for k, (one, other) in enumerate(zip(given, samples, strict=True)) if one is not other)
        if any(isinstance(sample, torch.SymInt) for sample in samples):
            raise refusal("wrap", "a size that has no number, such as the longest row of a nested tensor", None)
        for name, sample in zip(names, samples, strict=True):
            if sample is not None and not isinstance(sample, torch.Tensor | int | float | bool):
                raise UsageError(
                    f"sample input `{name}`: expected a tensor, a number or None, found {type(sample).__name__}. "
                    "Fix: flatten the arguments first"
                )
        if needs_arrangement(samples):
            written, any_write = written_by(function, samples, names)
            arrangement = arrange(samples, names, written, any_write=any_write)
        return _wrap(
            function,
            samples,
            compilers,
            names=names,
            arrangement=arrangement,
            is_apart=any_write,
            is_checked=is_checked,
            repeat=repeat,
            awaited=awaited,
        )
    except Refusal as error:
        raise explained(_located(error, function)) from error


def _wrap(
    function: Callable[..., Any],
    samples: Sequence[Any],
    compilers: Compilers,
    *,
    names: tuple[str, ...],
    arrangement: Arrangement,
    is_apart: bool,
    is_checked: bool,
    repeat: Repeat | None,
    awaited: tuple[int, ...],
    writes_inside: bool | None = None,
) -> Callable[[list[Any]], list[Any]]:
    """The compiled function, traced with inputs in the place of its arguments.

    `is_apart`: inputs that still share a storage do not overlap, or nobody writes them; torch, which would merge some
    of them, sees each in a storage of its own."""
    noted, given = RunNotes(), arrangement.samples(samples)
    inputs = apart(given) if is_apart else given
    told = [names[k] if k < len(samples) else f"base{k - len(samples)}" for k in arrangement.inputs]
    random = compilers.functional_random
    with captured(
        arrangement.adapted(function, noted),
        inputs,
        compilers.decompositions,
        writes_inside=writes_inside,
        names=told,
        functional_random=random,
    ) as (traced, seen):
        check_module(traced.graph, "the trace")
        infos = list(enumerate(traced.facts.input_info))
        aliased = reshaped_and_back(traced, seen)
        # A write by the graph itself is seen by autograd, where the program's may not be, and knows no new shape.
        is_outside = any(
            is_written_by_graph(info) and (not seen.moves_version(k) or k in seen.reshaped) for k, info in infos
        )
        if not aliased and not is_outside:
            plan = plan_call(
                traced, seen, samples=given, arguments=names, arrangement=arrangement, noted=noted, compilers=compilers
            )
            plan = with_common_values(traced, plan)
            if is_checked:
                plan = dataclasses.replace(plan, checks=tuple(check_of(sample) for sample in samples))
            plan = dataclasses.replace(plan, awaited=awaited)

            def trace_in_graph() -> list[tuple[int, str]]:
                again = arrangement.adapted(function, RunNotes())
                with captured(again, inputs, compilers.decompositions, writes_inside=True) as (inside, _):
                    return forward_writes(inside)

            again = None
            if traced.is_joint and compilers.plain is not None:
                plain = dataclasses.replace(compilers.plain(), decompositions=compilers.decompositions)
                mark = None if repeat is None else fingerprint(traced)
                again = HigherDerivatives(repeat or _itself(function), wrap_function, plain, arrangement, mark=mark)
            late = take_out(traced, plan, seen.line(), trace_in_graph) if traced.is_joint else ()
            check_module(traced.graph, "the backward's writes were taken out")
            compiled: Callable[[list[Any]], list[Any]] = _compile(traced, plan, late, compilers, again)
            return compiled
    return _wrap(  # outside of the first trace, whose modes would see what this one makes
        function,
        samples,
        compilers,
        names=names,
        arrangement=dataclasses.replace(arrangement, aliased=arrangement.aliased | aliased),
        is_apart=is_apart,
        is_checked=is_checked,
        repeat=repeat,
        awaited=awaited,
        writes_inside=False if is_outside else writes_inside,
    )


def _located(refused: Refusal, function: Callable[..., Any]) -> Refusal:
    """The refusal with a line of the user's: where nothing else is known, that where the function begins."""
    home = home_of(function)
    if refused.where is not None or home is None or not is_users(home.file):
        return refused
    return Refusal(dataclasses.replace(refused.reason, where=home))


def _itself(function: Callable[..., Any]) -> Repeat:
    return lambda inputs: contextlib.nullcontext(function)


def names_of(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The user's argument names, where they are known and can stand in generated code."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return usable_names((), count)
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return usable_names(names if len(names) == len(parameters) else (), count)


def usable_names(names: Sequence[str], count: int) -> tuple[str, ...]:
    """`names` if all can stand in generated code, beside its own; else numbered ones."""
    is_usable = len(set(names)) == len(names) == count and not any(
        not name.isidentifier() or keyword.iskeyword(name) or name in _TAKEN or name[-1].isdigit() or "_" in name
        for name in names
    )
    return tuple(names) if is_usable else tuple(f"arg{k}" for k in range(count))


def _compile(
    traced: Traced, plan: CallPlan, late: tuple[LateWrite, ...], compilers: Compilers, again: HigherDerivatives | None
) -> Any:
    _mark_arguments(traced.graph, plan)
    with torch.no_grad():
        if not traced.is_joint:
            _mark_visible(traced.graph, plan)
            instead = _first_call(traced.graph, plan, compilers)
            run = compilers.inference(traced.graph, traced.inputs)
            return load_call(plan, run, instead=instead, is_boxed=compilers.is_boxed)
        refuse_compiled_autograd()
        compute_once_what_is_stashed(traced.graph)
        overwritten = overwritten_inputs(traced)
        forward, backward = compilers.partition(
            traced.graph,
            traced.inputs,
            num_fwd_outputs=plan.returned_values,
            static_lifetime_input_indices=[],
        )
        node = plan_node(traced, plan, forward, backward, late)
        origins = origins_of(traced.facts, node.differentiable)
        saved, is_every = saved_by(forward, plan), compilers.keeps_inputs
        kept = kept_inputs(traced, node, forward, saved, overwritten, is_every=is_every)
        why = compilers.why_once or why_not(traced, node, forward, kept)
        if why is None and again is not None:
            node = dataclasses.replace(node, inputs=kept, draws=draws_of(forward))
        onward = Onward(again if why is None else None, why, node, origins)
        plan = dataclasses.replace(plan, node=node)
        _mark_visible(forward, plan)
        instead = _first_call(forward, plan, compilers)
        run_forward = compilers.forward(forward, [*traced.inputs[0], *traced.inputs[2:4], *generator_inputs(forward)])
    tangents = 0 if node.is_whole else len(node.tangents)
    lazy = LazyBackward(_later(_whole(compilers.backward), backward, tangents, is_boxed=compilers.is_boxed), tangents)
    last = None
    donating = compilers.donating
    if donating is not None and node.donated:

        def compile_last(module: torch.fx.GraphModule, inputs: Sequence[Any], taken: Sequence[int]) -> Boxed:
            return donating(module, inputs, tuple(at for at, k in enumerate(taken) if k in node.donated))

        later = _later(compile_last, backward, tangents, is_boxed=compilers.is_boxed)
        last = _called(LazyBackward(later, tangents), backward)
    run_backward = _called(lazy, backward)
    call = load_call(plan, run_forward, run_backward, last, onward=onward, instead=instead, is_boxed=compilers.is_boxed)
    call.backward = lazy
    return call


def _called(lazy: LazyBackward, backward: torch.fx.GraphModule) -> Boxed:
    """The backward as it is called: with its caller's context variables."""
    return functools.partial(run_in_callers_context, lazy) if _is_threaded(backward) else lazy


def _is_threaded(backward: torch.fx.GraphModule) -> bool:
    """Whether the autograd engine runs this on a thread of its own, as it does for devices."""
    values = [node.meta.get("val") for node in backward.graph.nodes if node.op == "placeholder"]
    return any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in values)


def _first_call(graph: torch.fx.GraphModule, plan: CallPlan, compilers: Compilers) -> Instead | None:
    return first_call(graph, alias_check=compilers.alias_check, has_wrappers=plan.opened is not None)


def _mark_arguments(graph: torch.fx.GraphModule, plan: CallPlan) -> None:
    """Note at the placeholders of arguments where these stand in the call. The split into two graphs keeps such notes."""
    nodes = graph.graph.find_nodes(op="placeholder")
    for places, position in zip(plan.places_of_inputs(), plan.inputs, strict=True):
        if position < len(plan.arguments):  # the others are bases
            for at in places:
                nodes[at].meta[ARGUMENT] = position


def _mark_visible(graph: torch.fx.GraphModule, plan: CallPlan) -> None:
    """Note which results a user sees: after the new contents of arguments, and before what the backward needs."""
    visible = plan.places_of_values()[len(plan.writes) :]
    graph.graph.output_node().meta[VISIBLE] = tuple(at for places in visible for at in places)


def _whole(compile_backward: Compile) -> Callable[..., Boxed]:
    return lambda module, inputs, taken: compile_backward(module, inputs)


def _later(
    compile_taken: Callable[..., Boxed], backward: torch.fx.GraphModule, tangents: int, *, is_boxed: bool
) -> Callable[[tuple[int, ...], Sequence[Any]], Compiled]:
    """Compile the backward when it is first needed, from a copy of its graph and as if still in this trace."""
    context = torch_context.keep_tracing_context()

    def compile_backward(missing: tuple[int, ...], values: Sequence[Any]) -> Compiled:
        with context(), torch.no_grad():
            module, taken = without_gradients(backward, tangents, missing)
            check_module(module, "missing gradients were left out")
            traced = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
            inputs = [as_it_lies(fake, values[k]) for fake, k in zip(traced, taken, strict=True)]
            with flags.without_autocast():
                run: Boxed = compile_taken(module, inputs, taken)
            return run if is_boxed else take_one_list(run), taken

    return compile_backward
