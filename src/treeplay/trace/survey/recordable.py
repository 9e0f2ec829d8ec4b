"""What a recording can depend on: the survey of a program with the arguments of a call, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.torch_seam.modes import DisableTorchFunctionSubclass
from treeplay.trace.call import Call, home_of
from treeplay.trace.survey.found import Survey
from treeplay.trace.survey.given import find_given
from treeplay.trace.survey.program import survey
from treeplay.values.kinds import PLAIN, is_a, is_leaf
from treeplay.values.place import How, Place, Trail
from treeplay.values.signature import may_be_input
from treeplay.values.structure import as_written, classes_in, paths


def survey_call(program: Callable[..., Any], call: Call) -> Survey:
    """What `program` can reach besides the tensors it is given."""
    objects = [leaf for leaf in call.leaves if not is_a(leaf, (torch.Tensor, *PLAIN))]
    of_tensors = [type(leaf) for leaf in call.leaves if is_a(leaf, torch.Tensor)]  # whose code operators run
    return survey(program, [*objects, *classes_in(call.structure), *of_tensors], call.ran)


def survey_if_any(program: Callable[..., Any], call: Call) -> Survey:
    """What `program` can reach besides the tensors it is given; nothing where a survey is refused, as the trace will be."""
    with suppress(Refusal):
        return survey_call(program, call)
    return Survey()


def plain_values_of(found: Survey, call: Call) -> dict[Trail | int, Any]:
    """The plain values that a program reads, as they were when it was surveyed, by the way to each, and the numbers among its
    arguments, by their leaf."""
    values: dict[Trail | int, Any] = {at: leaf for at, leaf in enumerate(call.leaves) if may_be_input(leaf)}
    values.update(found.plain_values())
    return values


def survey_to_record(program: Callable[..., Any], call: Call) -> Survey:
    """What a recording can depend on, arguments included; raises `Refusal` where that cannot be followed."""
    with DisableTorchFunctionSubclass():  # a tensor's class is not asked what the tensor is
        _check_strided(program, call)
        found = survey_call(program, call)
        _find_arguments(found, call)
    find_given(found, call.args, call.kwargs, call.structure)
    _check_complete(program, found)
    _check_iterators(program, found)
    return found


def _find_arguments(found: Survey, call: Call) -> None:
    """Make the arguments, and their gradients, tensors that can be found again."""
    for index, leaf in enumerate(call.leaves):
        if is_a(leaf, torch.Tensor):
            place = Place(How.ARGUMENT, leaf, index, None, f"argument {index}")
            places = found.tensors.setdefault(id(leaf), [])
            if places and places[0].how is How.ARGUMENT:  # the same tensor again
                continue
            places.insert(0, place)  # first: what is in state too counts as an argument
            found.kept.append(leaf)
            if is_leaf(leaf) and leaf.grad is not None and id(leaf.grad) not in found.tensors:
                found.tensors[id(leaf.grad)] = [place.grad_of(leaf)]


def _check_strided(program: Callable[..., Any], call: Call) -> None:
    for path, leaf in zip(paths(call.structure), call.leaves, strict=True):
        if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
            layout = str(leaf.layout).removeprefix("torch.")
            raise Refusal.of(
                f"argument {as_written(path)}",
                f"is a tensor of layout {layout}, and a recording reads plain memory with a shape and strides",
                "pass what it is made of (its indices and values), or a plain tensor (.to_dense())",
                home_of(program),
            )


def _check_complete(program: Callable[..., Any], found: Survey) -> None:
    if found.is_complete:
        return
    raise Refusal.of(
        "state",
        "the program reaches too many objects to watch them all, so a change of one could go unnoticed",
        "keep large collections of Python objects out of its closure, globals and `self`; pass what it needs",
        home_of(program),
    )


def _check_iterators(program: Callable[..., Any], found: Survey) -> None:
    if not found.iterators:
        return
    place = found.iterators[0]
    is_in_dict = place.how is How.ITEM and is_a(place.holder, dict)
    is_global = is_in_dict and place.holder.keys() >= {"__builtins__", "__name__"}
    raise Refusal.of(
        f"{place.holder['__name__']}.{place.key}" if is_global else str(place),
        f"is a {type(place.read()).__name__} that the program can take items from; a recording "
        "would not, and a trace would use one up",
        "take the item outside and pass it as an argument",
        home_of(program),
    )
