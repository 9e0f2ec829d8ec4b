"""Flat function → compiled function that acts like it: trace, plan, compile, emit, load."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import keyword
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.errors import Refusal, UsageError
from treeplay.facts.source import Source
from treeplay.generated import load_source
from treeplay.wrap.aot import torch_private
from treeplay.wrap.aot.capture import Seen, captured, refusal
from treeplay.wrap.aot.compilers import Boxed, Compilers
from treeplay.wrap.aot.emit import emit_backward, emit_call, emit_forward
from treeplay.wrap.aot.first_call import Instead, first_call, on_first_call
from treeplay.wrap.aot.node import LazyBackward
from treeplay.wrap.aot.plan import CallPlan, Node
from treeplay.wrap.aot.planning import plan_call, plan_node
from treeplay.wrap.aot.random_states import generator_inputs
from treeplay.wrap.aot.subclass_rules import explained
from treeplay.wrap.aot.surroundings import refuse_backward_states, refuse_compiled_autograd, run_in_callers_context
from treeplay.wrap.aot.torch_private import Traced

_TAKEN = frozenset(
    (
        *("args", "values", "mode", "replay", "ctx", "run", "grads", "strided", "missing", "call", "forward"),
        *("backward", "plain", "names", "transformed", "generators", "Tensor"),
    )
)


def wrap_function(
    function: Callable[..., Any], samples: Sequence[Any], compilers: Compilers
) -> Callable[[list[Any]], list[Any]]:
    """Compile `function`, which takes and returns flat tensors, for calls like `samples`; the result is boxed.

    `.plan` is what a call does, `.source` the text of the call function. What cannot be done is a `Refusal`.
    """
    refuse_backward_states(samples)
    if any(isinstance(sample, torch.SymInt) for sample in samples):
        raise refusal("wrap", "a size that has no number, such as the longest row of a nested tensor", None)
    if not all(sample is None or isinstance(sample, torch.Tensor | int | float | bool) for sample in samples):
        raise UsageError("sample inputs must be tensors, numbers or None. To mend: flatten the arguments first")
    try:
        call = _wrap(function, samples, compilers, copies=())
        if call is None:
            call = _wrap(function, samples, compilers, copies=_copies(samples))
    except Refusal as error:
        raise explained(error) from error
    assert call is not None
    return call


def _copies(samples: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Pairs (later, earlier) of positions that hold one tensor."""
    first: dict[int, int] = {}
    return tuple(
        (k, first[id(sample)])
        for k, sample in enumerate(samples)
        if isinstance(sample, torch.Tensor) and first.setdefault(id(sample), k) != k
    )


def _wrap(
    function: Callable[..., Any], samples: Sequence[Any], compilers: Compilers, *, copies: tuple[tuple[int, int], ...]
) -> Callable[[list[Any]], list[Any]] | None:
    """The compiled function, or None if it writes one tensor that it was given twice, and `copies` do not say so."""
    from_earlier = dict(copies)
    positions = [k for k in range(len(samples)) if k not in from_earlier]
    place = {position: k for k, position in enumerate(positions)}

    def without_copies(*inputs: Any) -> Any:
        return function(*(inputs[place[from_earlier.get(k, k)]] for k in range(len(samples))))

    given = [samples[k] for k in positions]
    program = without_copies if copies else function
    options = {"functional_random": compilers.functional_random}
    with captured(program, given, compilers.decompositions, **options) as (traced, seen):
        if not copies and _copies(samples) and (seen.writes or _writes_any(traced)):
            return None
        plan = plan_call(
            traced,
            seen,
            samples=given,
            arguments=_names(function, len(samples)),
            copies=copies,
            positions=positions,
            compilers=compilers,
        )
        return _compile(traced, plan, seen, compilers, positions)


def _writes_any(traced: Traced) -> bool:
    return any(info.mutates_data or info.mutates_metadata for info in traced.facts.input_info)


def _names(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The user's argument names, where they are known and can stand in generated code."""
    plain = tuple(f"arg{k}" for k in range(count))
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return plain
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    is_usable = len(names) == count == len(parameters) and not any(
        keyword.iskeyword(name) or name in _TAKEN or name[-1].isdigit() or "_" in name for name in names
    )
    return tuple(names) if is_usable else plain


def _compile(
    traced: Traced, plan: CallPlan, seen: Seen, compilers: Compilers, positions: Sequence[int]
) -> Callable[[list[Any]], list[Any]]:
    with torch.no_grad():
        if not traced.is_joint:
            instead = _first_call(traced.graph, plan, compilers)
            call = _load(plan, compilers.inference(traced.graph, traced.inputs))
            if instead is not None:
                on_first_call(call, instead)
            return call
        refuse_compiled_autograd()
        forward, backward = compilers.partition(
            traced.graph,
            traced.inputs,
            num_fwd_outputs=plan.returned_values,
            static_lifetime_input_indices=[],
        )
        node = plan_node(traced, plan, forward, backward, positions)
        plan = dataclasses.replace(plan, node=node)
        instead = _first_call(forward, plan, compilers)
        run_forward = compilers.forward(forward, [*traced.inputs[0], *traced.inputs[2:4], *generator_inputs(forward)])
    lazy = LazyBackward(_later(compilers, backward))
    run_backward = functools.partial(run_in_callers_context, lazy) if _is_threaded(backward) else lazy
    function = _node_class(plan, node, run_forward, run_backward)
    if instead is not None:
        on_first_call(function.forward, instead)
    return _load(plan, function.apply)


def _is_threaded(backward: torch.fx.GraphModule) -> bool:
    """Whether the autograd engine runs this on a thread of its own, as it does for devices."""
    values = [node.meta.get("val") for node in backward.graph.nodes if node.op == "placeholder"]
    return any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in values)


def _first_call(graph: torch.fx.GraphModule, plan: CallPlan, compilers: Compilers) -> Instead | None:
    return first_call(graph, alias_check=compilers.alias_check, has_wrappers=plan.opened is not None)


def _later(compilers: Compilers, backward: torch.fx.GraphModule) -> Callable[[], Boxed]:
    """Compile the backward when it is first needed, from a copy of its graph and as if still in this trace."""
    context = torch_private.keep_tracing_context()

    def compile_backward() -> Boxed:
        inputs = [node.meta["val"] for node in backward.graph.nodes if node.op == "placeholder"]
        with context(), torch.no_grad():
            module = torch.fx.GraphModule(backward, copy.deepcopy(backward.graph))
            compiled: Boxed = torch_private.without_autocast(compilers.backward, module, inputs)
            return compiled

    return compile_backward


def _node_class(plan: CallPlan, node: Node, forward: Boxed, backward: Boxed) -> Any:
    """The plan's autograd function: nothing but the two generated functions."""
    sources = emit_forward(plan, node, forward), emit_backward(plan, node, backward)
    functions = [staticmethod(load_source(source)) for source in sources]
    return type("Treeplay", (torch.autograd.Function,), {"forward": functions[0], "backward": functions[1]})


def _load(plan: CallPlan, run: Callable[..., Any]) -> Callable[[list[Any]], list[Any]]:
    source: Source = emit_call(plan, run)
    call: Any = load_source(source)
    call.source, call.plan = source.text, plan
    wrapped: Callable[[list[Any]], list[Any]] = call
    return wrapped
