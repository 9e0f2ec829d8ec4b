"""Schedules of learning rates that a program steps at its end: each call steps them when all else is done.

What a schedule does is Python, and a replay runs none of it. So while a program is traced its schedules stay as they are, and
the call function of the recording steps them last.

    optimizer.step()                               optimizer.step()
    schedule.step()      ─▶ rates that refuse      schedule.step() is noted
    return loss             to be read             return loss            ─▶  a replay, then schedule.step()

A program that reads a new rate in the same call would get the old one, so it is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

import torch
from torch.optim import lr_scheduler

from treeplay.errors import Refusal
from treeplay.guards.reads.reads import ObjectReads
from treeplay.observe.lines import user_location
from treeplay.torch_seam.patched import Shared, all_wanted
from treeplay.trace.run.tracer import Tracer
from treeplay.trace.survey.found import Survey
from treeplay.values.flatten import flatten
from treeplay.values.kinds import module_of
from treeplay.values.location import Location

_RATES = ("lr", "momentum", "betas")
"""What schedules change in an optimizer's groups."""


class Schedules:
    """The schedules that one traced run steps."""

    def __init__(self, tracer: Tracer, found: Survey) -> None:
        self.stepped: list[Any] = []
        self._tracer = tracer
        self._found = found
        self._thread = get_ident()
        self._rates: list[tuple[dict[str, Any], str, Any, Any]] = []
        self._reads: dict[int, ObjectReads | None] = {}

    def step(self, schedule: Any) -> bool:
        """Note that the program steps `schedule`, which stays as it is; False if it cannot wait for the end of the call."""
        reads = self._tracer.reads
        is_noting = reads.pause()
        try:
            return self._note(schedule, reads)
        finally:
            if is_noting:
                reads.resume()

    def _note(self, schedule: Any, reads: Any) -> bool:
        all_of_it = [*_with_inner(schedule)]
        optimizer: Any = getattr(schedule, "optimizer", None)
        if not any(optimizer is known for known in self._found.optimizers) or not all(map(_is_torchs, all_of_it)):
            return False
        if not all(
            isinstance(group["lr"], torch.SymFloat) and reads.is_watched(schedule) for group in optimizer.param_groups
        ):
            return False
        self.stepped.append(schedule)
        for each in all_of_it:
            if id(each) not in self._reads:
                # Set aside: what is read of it from here on shows that the program goes on with it (`finish`).
                self._reads[id(each)] = reads.objects.pop(id(each), None)
        for group in optimizer.param_groups:
            for name in _RATES:
                if name in group:
                    self._withhold(group, name)
        return True

    def _withhold(self, group: dict[str, Any], name: str) -> None:
        before = group[name]
        withheld = tuple(map(self._withheld, before)) if isinstance(before, (tuple, list)) else self._withheld(before)
        group[name] = withheld
        self._rates.append((group, name, before, withheld))

    def _withheld(self, rate: Any) -> Any:
        return torch.SymFloat(_NewRate(rate, self)) if isinstance(rate, torch.SymFloat) else rate

    def refuse(self, where: Location | None = None) -> Refusal:
        """What to raise where a new rate is needed in the call that makes it."""
        return self._tracer.refuse(
            f"{type(self.stepped[0]).__name__}.step",
            "the program goes on with the learning rate after the schedule was stepped, which a replay does last of all",
            "step the schedule after the call: the learning rate is an input of the recording",
            where,
        )

    def finish(self, result: Any, reads: Any) -> None:
        """The run is over: what it read of a schedule before is all that it may have read. Raises `Refusal`."""
        for key, before in self._reads.items():
            later = reads.objects.pop(key, None)
            if later is not None and (later.assigned or later.read.keys() - {"step"}):
                raise self.refuse()
            noted = before or later
            if noted is not None:
                reads.objects[key] = noted
        # Reversed: of a rate that was withheld twice, the number is what stood there first.
        for group, name, before, withheld in reversed(self._rates):
            if group.get(name) is withheld:
                group[name] = before
        if self.stepped and any(map(_is_withheld, flatten(result)[0])):
            raise self.refuse()


class _NewRate:
    """The node of a rate that is not known before a replay is over. Other threads find the rate as it was."""

    def __init__(self, rate: torch.SymFloat, schedules: Schedules) -> None:
        self._rate = rate
        self._schedules = schedules

    def __getattr__(self, name: str) -> Any:
        if get_ident() != self._schedules._thread:
            return getattr(self._rate.node, name)
        raise self._schedules.refuse(user_location())


def _is_withheld(value: Any) -> bool:
    return isinstance(value, torch.SymFloat) and isinstance(value.node, _NewRate)


def _with_inner(schedule: Any) -> Iterator[Any]:
    yield schedule
    for inner in getattr(schedule, "_schedulers", ()):
        yield from _with_inner(inner)


def _is_torchs(schedule: Any) -> bool:
    return module_of(type(schedule)).startswith("torch.optim.")


def _noting(original: Callable[..., Any], value: Callable[[], Any]) -> Callable[..., Any]:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        schedules = value()
        if schedules is None or args or kwargs or not schedules.step(self):
            return original(self, *args, **kwargs)
        return None

    return step


_STEPS = [
    Shared(cls, "step", _noting)
    for cls in vars(lr_scheduler).values()
    if isinstance(cls, type) and issubclass(cls, lr_scheduler.LRScheduler) and "step" in vars(cls)
]


def stepped_last(schedules: Schedules) -> contextlib.AbstractContextManager[None]:
    """For a block, schedules that this thread steps are noted instead."""
    return all_wanted(_STEPS, schedules)
