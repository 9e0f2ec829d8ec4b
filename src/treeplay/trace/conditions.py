"""From a traced run to a `Signature`: inputs and where to find them, and what must still hold for a replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from treeplay.facts.place import How, Place
from treeplay.facts.signature import (
    Argument,
    Constant,
    Input,
    Kind,
    Ref,
    Signature,
    State,
    Watch,
    Write,
)
from treeplay.facts.spec import TensorSpec
from treeplay.facts.structure import Leaf, Structure, paths
from treeplay.trace.tracer import InputSeen, storage_of

if TYPE_CHECKING:
    from treeplay.trace.jit import Call, Run

_CONTAINERS = (dict, list, tuple)
_VALUES = (torch.Tensor, torch.SymFloat, int, float, complex, str, bytes, type(None))


def make_signature(
    run: Run, call: Call, results: Leaf | Structure, refs: tuple[Ref, ...], writes: tuple[Write, ...], outputs: int
) -> Signature:
    """Put together what the run came across."""
    tape = run.tracer.tape
    names = paths(call.structure)
    inputs = tuple(_input(seen, index, call, names, run) for index, seen in enumerate(tape.inputs))
    read = {node.target for node in tape.graph.nodes if node.op == "placeholder"}
    numbers = tuple(
        dataclasses.replace(number, is_input=number.name in read)
        for number in run.numbers
        if number.name in read or any(_mentions(text, number.name) for text in run.tracer.world.guards)
    )
    watches = (*_number_watches(run), *_optimizer_watches(run), *_absent_grads(run))
    places = [*_state_places(inputs), *(watch.place for watch in watches), *(number.place for number in numbers)]
    places += [run.found.objects[key] for key in run.called if key in run.found.objects]
    places += [write.place for write in writes]
    identities, lengths = _on_the_way(places, run)
    is_step = tape.uses_backward or bool(run.stepped)
    return Signature(
        kind=Kind.WHOLE_STEP if is_step else Kind.INFERENCE,
        arguments=call.structure,
        leaves=tuple(TensorSpec.of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves),
        inputs=inputs,
        numbers=numbers,
        guards=tuple(run.tracer.world.guards.values()),
        watches=watches,
        identities=identities,
        lengths=lengths,
        results=results,
        refs=refs,
        writes=writes,
        outputs=outputs,
    )


def _input(seen: InputSeen, index: int, call: Call, names: list[str], run: Run) -> Input:
    tensor = seen.tensor
    spec = TensorSpec.of(tensor)
    mutated = storage_of(seen.value.fake) in run.tracer.tape.mutated
    if seen.is_constant:
        return Input(f"constant {index}", Constant(tensor), spec, mutated)
    places = run.found.tensor_at(tensor)
    first = places[0]
    if first.how is How.ARGUMENT:
        return Input(names[first.key], Argument(first.key), spec, mutated)
    return Input(str(first), State(first, tuple(places[1:])), spec, mutated)


def _mentions(text: str, name: str) -> bool:
    return name in text.replace("(", " ").replace(")", " ").replace("-", " ").split()


def _number_watches(run: Run) -> Iterator[Watch]:
    modules = {id(vars(module)): key for key, module in run.found.modules.items()}
    optimizers = {id(vars(optimizer)) for optimizer in run.found.optimizers}
    for place, value in run.found.numbers:
        owner = modules.get(id(place.holder))
        if (owner is None or owner in run.called) and id(place.holder) not in optimizers:
            yield Watch(place, value)


def _optimizer_watches(run: Run) -> Iterator[Watch]:
    """Plain values of the groups of each optimizer that stepped (its floats are inputs, not watched)."""
    for optimizer in run.stepped.values():
        groups = run.found.objects[id(optimizer)].child(How.ITEM, vars(optimizer), "param_groups", "param_groups")
        for index, group in enumerate(optimizer.param_groups):
            here = groups.child(How.ITEM, optimizer.param_groups, index, f"param_groups[{index}]")
            for name, value in group.items():
                if value is None or isinstance(value, (bool, int, str)):
                    yield Watch(here.child(How.ITEM, group, name, f"{here}[{name!r}]"), value)


def _absent_grads(run: Run) -> Iterator[Watch]:
    """Leaves that had no gradient: with one, backward would add to it instead of making it."""
    if not run.tracer.tape.uses_backward:
        return
    for seen in run.tracer.tape.inputs:
        tensor = seen.tensor
        if not seen.is_constant and tensor.requires_grad and tensor.is_leaf and tensor.grad is None:
            owner = run.found.tensor_at(tensor)[0]
            yield Watch(owner.child(How.GRAD, tensor, None, f"{owner}.grad"), None)


def _state_places(inputs: Iterable[Input]) -> Iterator[Place]:
    for item in inputs:
        if isinstance(item.source, State):
            yield item.source.place
            yield from item.source.also


def _on_the_way(places: Iterable[Place], run: Run) -> tuple[tuple[Watch, ...], tuple[Watch, ...]]:
    """Objects and containers between the roots and `places`: the former must stay, the latter keep their length."""
    identities: dict[int, Watch] = {}
    lengths: dict[int, Watch] = {}
    for place in places:
        step: Place | None = place
        while step is not None:
            value = _read(step)
            if isinstance(value, _CONTAINERS):
                if isinstance(value, list):
                    lengths.setdefault(id(value), Watch(step, len(value)))
            elif step.how not in (How.ROOT, How.ARGUMENT) and not isinstance(value, _VALUES):
                identities.setdefault(id(value), Watch(step, value))
            step = step.parent
    for key, module in run.called.items():
        if module._modules and key in run.found.objects:
            holder = Place(How.ROOT, module._modules, None, None, f"{run.found.objects[key]}'s submodules")
            lengths.setdefault(id(module._modules), Watch(holder, len(module._modules)))
    return tuple(identities.values()), tuple(lengths.values())


def _read(place: Place) -> Any:
    try:
        return place.read()
    except (KeyError, IndexError, AttributeError, ValueError):
        return None
