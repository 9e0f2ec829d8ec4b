"""Checkpoints, which compute in the backward once more what they computed in the forward."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
import torch.utils.checkpoint

from treeplay.torch_seam import autograd
from treeplay.torch_seam.autograd import saving_hooks
from treeplay.torch_seam.schemas import leaves_of
from treeplay.torch_seam.tensors import address_of

_MODULE = "torch.utils.checkpoint"
CHECKPOINTED: Any = torch.ops.higher_order.tag_activation_checkpoint
"""What a checkpoint is in a graph of Dynamo's: called with the graph of the function, its arguments and the options."""
CONTEXTS_OF_CHECKPOINT = "_checkpoint_context_fn"
"""Under this name that graph's `meta` has the checkpoint's `context_fn`, if it has one."""


def is_drawn_anew(generator: torch.Generator) -> bool:
    """Whether a checkpoint that is not reentrant runs what runs now once more, and one of those around it does not put back
    the state of `generator` for that: with `preserve_rng_state=False` of none, and else only of torch's own generators, on the
    CPU and on the devices of what the checkpoint is given."""
    return not all(_puts_back(hook, generator) for hook in checkpoints_around())


def checkpoints_around() -> list[Callable[..., Any]]:
    """The checkpoints that are not reentrant and run what runs now once more in the backward, the innermost first, as the
    functions that pack for them. Others may be on top of torch's stack of hooks, which the program uses inside of a checkpoint
    (`save_on_cpu`)."""
    hooks = saving_hooks(False)
    if hooks is None:
        return []
    every = autograd.all_saving_hooks() if autograd.may_put_hooks_on() else [hooks]
    return [pack for pack, _ in every if getattr(pack, "__module__", None) == _MODULE]


def _puts_back(pack: Any, generator: torch.Generator) -> bool:
    """Whether a checkpoint puts back the state of a generator before it computes again."""
    frame = _free(pack, "frame")
    if frame is None:  # it computes again now: what it computes was there before
        return True
    again: Any = frame.recompute_fn
    device = generator.device
    if not _free(again, "preserve_rng_state"):
        return False
    if device.type == "cpu":
        return address_of(generator) == address_of(torch.default_generator)
    if device.type != _free(again, "device_type") or device.index not in (_free(again, "fwd_devices") or ()):
        return False
    own = getattr(torch, device.type).default_generators[device.index]
    return address_of(generator) == address_of(own)


def restores_what_it_kept(pack: Any) -> bool:
    """Whether a checkpoint computes again without a context of its own, but one that gives what a selective checkpoint kept;
    that raises if the program has written to it."""
    frame = _free(pack, "frame")
    context = None if frame is None else _free(frame.recompute_fn, "recompute_context")
    if context is None or type(context) is contextlib.nullcontext:
        return True
    if type(context) is not torch.utils.checkpoint._CachedTorchDispatchMode:
        return False
    if context.allow_cache_entry_mutation:
        return True
    kept = [one for by_place in context.storage.values() for one in leaves_of([*by_place.values()])]
    return all(getattr(one, "version", None) is None or one.val._version == one.version for one in kept)


def variables_of(pack: Any) -> list[Any]:
    """What a checkpoint's function finds now in the variables of the functions around it, as do the functions that it calls by
    these variables, by `partial` or as a method."""
    frame = _free(pack, "frame")
    found, seen = list[Any](), set[int]()
    waiting = [None if frame is None else _free(frame.recompute_fn, "fn")]
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        if type(function) is functools.partial:
            waiting += (function.func, *function.args, *function.keywords.values())
        elif type(function) is MethodType:
            waiting.append(function.__func__)
        elif type(function) is FunctionType:
            variables = [*map(_content, function.__closure__ or ())]
            found += variables
            waiting += variables
    return found


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _free(function: Any, name: str) -> Any:
    """A variable of the function around `function`, None where it has none of that name, or none in it."""
    names = function.__code__.co_freevars
    if name not in names:
        return None
    try:
        return function.__closure__[names.index(name)].cell_contents
    except ValueError:
        return None


def is_of_reentrant_checkpoint(node: Any) -> bool:
    """Whether an autograd node is a reentrant checkpoint's, whose backward calls another."""
    return getattr(getattr(node, "_forward_cls", None), "__module__", None) == _MODULE


def ends_recomputation(error: BaseException | None) -> bool:
    """Whether an exception is how a checkpoint breaks off what it recomputes, once all is there that its backward needs."""
    return isinstance(error, getattr(torch.utils.checkpoint, "_StopRecomputationError", ()))
