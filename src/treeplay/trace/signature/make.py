"""From a traced run to a `Signature`: inputs and where to find them, and what must still hold for a replay."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from treeplay.torch_seam.tensors import spec_of, storage_of
from treeplay.trace.call import Call
from treeplay.trace.run.tape import InputSeen
from treeplay.trace.signature.guarded import attributes_of_arguments
from treeplay.trace.signature.result_keys import tensors_in_keys
from treeplay.trace.survey.found import Survey
from treeplay.trace.survey.given import meetings
from treeplay.trace.traced import TracedRun
from treeplay.trace.training.hooks import HookTables, has_hooks
from treeplay.trace.training.scaling import idle_scalers
from treeplay.values.kinds import is_a
from treeplay.values.output import Computed
from treeplay.values.place import How, Place, root
from treeplay.values.signature import (
    Alias,
    Argument,
    Constant,
    Input,
    Kind,
    Ref,
    Signature,
    State,
    Unread,
    Watch,
    Write,
    values_in,
)
from treeplay.values.structure import DICTS, Leaf, Structure, paths

_CONTAINERS = (dict, list, tuple)
_VALUES = (torch.Tensor, torch.SymFloat, torch.SymInt, int, float, complex, str, bytes, type(None))


def make_signature(
    run: TracedRun,
    results: Leaf | Structure,
    refs: tuple[Ref, ...],
    writes: tuple[Write, ...],
    outputs: int,
) -> Signature:
    """The signature of what the run came across."""
    tape, call = run.tracer.tape, run.call
    names = paths(call.structure)
    inputs = tuple(_input(seen, index, names, run) for index, seen in enumerate(tape.inputs))
    read = {node.target for node in tape.graph.nodes if node.op == "placeholder"}
    # Also those that nothing was computed from: the program may have asked for the type of one, or whether it is None.
    stored = [value.expression for value in values_in(refs, writes) if isinstance(value, Computed)]
    numbers = tuple(
        dataclasses.replace(
            number,
            is_input=number.name in read or run.has_own_backwards,  # which may compute with it, and are traced later
            is_exact=number.is_exact or any(has_symbol(text, number.name) for text in stored),
        )
        for number in (*run.numbers, *run.given)
    )
    watches = (*_hook_watch(run), *_absent_grads(run), *attributes_of_arguments(run))
    identities = tuple(
        Watch(run.found.tensor_at(tensor)[0], tensor)
        for tensor in (
            *filter(has_hooks, _leaves_of_backward(run)),
            *tensors_in_keys((*refs, *(write.value for write in writes)), results),
        )
    )
    lengths = tuple(idle_scalers(run.found))
    state = [seen.tensor for seen in tape.inputs if not seen.is_constant and not _is_given(seen.tensor, run)]
    has_grad = [tensor for tensor in run.grads_read.values() if _is_given(tensor, run) and tensor.grad is not None]
    return Signature(
        kind=run.kind,
        arguments=call.structure,
        leaves=leaves_of_call(call),
        inputs=inputs,
        numbers=numbers,
        guards=run.tracer.world.all_guards(stored),
        watches=watches,
        identities=identities,
        lengths=lengths,
        facts=tuple(run.watch.facts.of_run(run.found, [*call.tensors, *state], has_grad)),
        results=results,
        refs=refs,
        writes=writes,
        outputs=outputs,
        meetings=tuple(meetings(run.found, refs, writes)),
    )


def _is_given(tensor: torch.Tensor, run: TracedRun) -> bool:
    places = run.found.tensor_at(tensor)
    return bool(places) and places[0].how is How.ARGUMENT


def name_and_source(places: Sequence[Place], names: Sequence[str]) -> tuple[str, Argument | State]:
    """What an input that was found at these places is called, and where a call finds it; `names` are those of the leaves."""
    first, *others = places
    if first.how is How.ARGUMENT:
        return names[first.key], Argument(first.key, tuple(others))
    return str(first), State(first, tuple(others))


def _input(seen: InputSeen, index: int, names: list[str], run: TracedRun) -> Input:
    tensor = seen.tensor
    spec = spec_of(tensor)
    storage = storage_of(seen.value.fake)
    mutated = storage in run.tracer.tape.mutated
    is_told = not mutated or run.tracer.tape.tells_of(seen)
    if seen.is_constant:
        return Input(f"constant {index}", Constant(tensor), spec, mutated)
    name, source = name_and_source(run.found.tensor_at(tensor), names)
    again = storage in run.tracer.tape.checkpointed.read
    return Input(name, source, spec, mutated, begins=seen.begins, is_told=is_told, is_read_again=again)


def leaves_of_call(call: Call) -> tuple[Any, ...]:
    """The leaves of a call's arguments as a signature has them."""
    first: dict[int, int] = {}
    leaves: list[Any] = []
    for index, leaf in enumerate(call.leaves):
        if index in call.numbers:
            leaves.append(Unread())  # there is a condition on it of its own
        elif not is_a(leaf, torch.Tensor):
            leaves.append(leaf)
        elif first.setdefault(id(leaf), index) != index:
            leaves.append(Alias(first[id(leaf)]))
        else:
            leaves.append(spec_of(leaf))
    return tuple(leaves)


def stays_true(holder: Any, name: str, label: str) -> Watch:
    """An attribute that computes whether something is as it was."""
    return Watch(root(holder, label).child(How.ATTRIBUTE, holder, name, label), True)


def has_symbol(text: str, name: str) -> bool:
    """Whether an expression over symbolic numbers has one of this name in it."""
    return re.search(rf"\b{name}\b", text) is not None


def _hook_watch(run: TracedRun) -> Iterator[Watch]:
    """Hooks of the tensors that a backward of the program goes to, or that the caller's may go to in vain; those of modules and
    optimizers are read, so guarded."""
    state = [tensor for tensor in run.unreached if run.found.tensor_at(tensor)[0].how is not How.ARGUMENT]
    leaves = _leaves_of_backward(run) or state
    if leaves:
        hooks = HookTables((), (), leaves, name=lambda leaf: str(run.found.tensor_at(leaf)[0]))
        yield stays_true(hooks, "are_the_same", "the hooks are the same")


def _leaves_of_backward(run: TracedRun) -> list[torch.Tensor]:
    # In a differentiable program the caller's own backward adds to gradients and runs hooks.
    if not run.tracer.tape.uses_backward or run.kind is Kind.DIFFERENTIABLE:
        return []
    seen = [seen.tensor for seen in run.tracer.tape.inputs if not seen.is_constant]
    return [tensor for tensor in seen if tensor.requires_grad and tensor.is_leaf]


def _absent_grads(run: TracedRun) -> Iterator[Watch]:
    """Leaves that had no gradient: with one, backward would add to it, and an optimizer would not pass them over (frozen
    ones neither)."""
    used = dict(run.watch.grads_read)
    used |= {id(tensor): tensor for tensor in _leaves_of_backward(run)}
    for tensor in used.values():
        places = run.found.tensor_at(tensor)
        if places and run.snapshot.had_no_grad(tensor):
            yield Watch(places[0].grad_of(tensor), None)


def on_the_way(
    places: Iterable[Place], found: Survey, called: dict[int, torch.nn.Module], hooked: Iterable[torch.Tensor]
) -> tuple[tuple[Watch, ...], tuple[Watch, ...]]:
    """Objects and containers between the roots and `places`: the former must stay, the latter keep their length. So must
    the submodules of `called` modules, the tables of scalers, and those of the tensors `hooked` that have hooks."""
    identities: dict[int, Watch] = {}
    lengths: dict[int, Watch] = {}
    groups = {id(group) for optimizer in found.optimizers for group in optimizer.param_groups}
    idle = tuple(idle_scalers(found))
    for place in (*places, *(watch.place.parent for watch in idle)):
        step: Place | None = place
        while step is not None:
            value = step.read_or(None)
            if isinstance(value, _CONTAINERS):
                # An optimizer's state is of another class: it grows by itself.
                is_users_dict = type(value) in DICTS and step.how is not How.ROOT and id(value) not in groups
                if isinstance(value, list) or is_users_dict:
                    lengths.setdefault(id(value), Watch(step, len(value)))
            elif step.how not in (How.ROOT, How.ARGUMENT) and not isinstance(value, _VALUES):
                identities.setdefault(id(value), Watch(step, value))
            step = step.parent
    for tensor in hooked:
        if has_hooks(tensor):
            identities[id(tensor)] = Watch(found.tensor_at(tensor)[0], tensor)
    for key, module in called.items():
        if module._modules and key in found.objects:
            holder = Place(How.ROOT, module._modules, None, None, f"{found.objects[key]}'s submodules")
            lengths.setdefault(id(module._modules), Watch(holder, len(module._modules)))
    return tuple(identities.values()), (*lengths.values(), *idle)
