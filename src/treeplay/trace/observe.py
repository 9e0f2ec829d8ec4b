"""The first run of a program: eager, with a log of the operators it ran, so that the trace can be compared with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from treeplay.guards.caches import Room, is_limited
from treeplay.observe.lines import call_site, user_location
from treeplay.sandbox.boundary import NoModesLeft
from treeplay.torch_seam.casts import as_unwatched, is_cast_inside, note_casts
from treeplay.torch_seam.dynamo import dynamo_off
from treeplay.torch_seam.modes import TorchDispatchMode, native_layers
from treeplay.torch_seam.operators import HigherOrderOperator
from treeplay.torch_seam.patched import Shared
from treeplay.torch_seam.schemas import LIFTS, is_foreach_write, tell_autograd
from treeplay.trace.call import Call
from treeplay.trace.log import LoggedCall, result_entry
from treeplay.trace.run.apart import taken_apart
from treeplay.trace.run.layouts import Question, answer, question
from treeplay.trace.run.products import ProductsAsEager
from treeplay.trace.run.recurrent import asked_of
from treeplay.trace.run.tape import content
from treeplay.trace.survey.recordable import plain_values_of, survey_if_any
from treeplay.values.place import Trail

aten = torch.ops.aten
_UNLOGGED = frozenset({aten._local_scalar_dense.default, aten.detach.default})


class Log(list[LoggedCall]):
    """The operators of a run. `failure` is an error of ours that ended it: the program went on, unlogged. `began_with`: the
    plain values that the program read as it began, by the way to each; numbers among the arguments by their leaf. `misses`: how
    often limited caches had lacked what they were asked for by the end of this run, but for those that dropped something in it;
    later, by the end of the last trace. By the `id` of the function."""

    failure: Exception | None = None
    began_with: Mapping[Trail | int, Any] = MappingProxyType({})

    def __init__(self) -> None:
        super().__init__()
        self.misses: dict[int, int] = {}


class Observer(TorchDispatchMode):
    """Runs every operator as it is and notes its name, the user's line and the numbers it was given."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        note_casts()
        self.log = Log()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):  # which no trace follows: there will be nothing to compare
            return func(*args, **kwargs)
        if func in _UNLOGGED or func.namespace == "profiler" or self.log.failure is not None:
            return as_unwatched(func, args, kwargs) if is_cast_inside(func) else func(*args, **kwargs)
        if (out := taken_apart(self, func, args, kwargs)) is not NotImplemented:
            return out
        try:
            asked, position = self._note(func, args, kwargs)
        except Exception as error:  # the program's effects happen all the same
            self.log.failure = error
            asked, position = None, 0
        out = as_unwatched(func, args, kwargs) if is_cast_inside(func) else func(*args, **kwargs)
        if is_foreach_write(func):
            tell_autograd(func, args)
        if asked is not None:
            try:
                self.log[position] = replace(self.log[position], layout=(asked, answer(func, out, args, kwargs)))
            except Exception as error:
                self.log.failure = error
        return out

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Question | None, int]:
        """Log an operator: what there is to ask of its results, and its place in the log."""
        where = user_location()
        if func in LIFTS:
            self.log.append(LoggedCall.of_constant(args[0], content(args[0]), where, call_site()))
        entry = LoggedCall.of(func, where, args, kwargs, call_site())
        asked = question(func, asked_of(func, args), kwargs)
        self.log.append(entry)
        return asked, len(self.log) - 1


def _lengths_as_numbers(original: Any, is_wanted: Callable[[], bool]) -> Any:
    def ctc_loss(losses: Any, targets: Any, lengths: Any, target_lengths: Any, *args: Any, **kwargs: Any) -> Any:
        are_tensors = all(isinstance(value, torch.Tensor) for value in (losses, lengths, target_lengths))
        if is_wanted() and are_tensors and losses.device not in (lengths.device, target_lengths.device):
            lengths, target_lengths = lengths.tolist(), target_lengths.tolist()
        return original(losses, targets, lengths, target_lengths, *args, **kwargs)

    return ctc_loss


_CTC_LOSS = Shared(torch, "ctc_loss", _lengths_as_numbers)
"""With nobody watching, lengths on the CPU are read as numbers. Where a mode watches torch hands on the tensors, and the
operators of a GPU take none of the CPU."""


def observe(program: Callable[..., Any], call: Call) -> tuple[Any, Log]:
    """Run `program` eagerly: its result, and the log, which ends with the plain values that it returned.

    What the program raises comes out as it is, and so do errors of ours never.
    """
    observer, rooms = Observer(), dict[Any, Room]()
    try:
        found = survey_if_any(program, call)
        observer.log.began_with = plain_values_of(found, call)
        rooms = {each.function: Room.now(each.function) for each in found.cached if is_limited(each.function)}
        del found  # which keeps what the program may drop
    except Exception as error:
        observer.log.failure = error
    # The mode belongs to this thread.
    # Under it compiled functions run as plain Python: Dynamo, if it saw that, would never compile them again.
    with (
        NoModesLeft(),
        dynamo_off(but_for_operators=True),
        _CTC_LOSS.wanted(),
        native_layers(),
        ProductsAsEager(),
        torch.autograd.set_multithreading_enabled(False),
        observer,
    ):
        result = program(*call.args, **call.kwargs)
    try:
        observer.log.append(result_entry(result))
        observer.log.misses = {
            id(function): Room.now(function).misses for function, room in rooms.items() if room.was_enough(function)
        }
    except Exception as error:
        observer.log.failure = error
    return result, observer.log
