"""What a traced run asks of tensors that were there before: the answers are conditions of its recording.

    x.storage_offset() ─ WatchFunctions ─▶ FactsAsked ─ make_signature ─▶ AskedFact(argument 0, "storage_offset", 4)

What follows from a tensor's spec and class is no such fact. Of what the run itself makes, torch knows the answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import torch

from treeplay.torch_seam.facts import BASE, FACTS, HAS_GRADIENT, VERSION, Fact, base_among
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.modes import DisableTorchFunctionSubclass, is_of_transform
from treeplay.torch_seam.tensors import storage_of
from treeplay.trace.run.tracer import Tracer
from treeplay.trace.survey.found import Survey
from treeplay.values.place import How, Place
from treeplay.values.signature import Argument, AskedFact, State

_BASE = FACTS[BASE]


class FactsAsked:
    """Those that one run asked, with the answers that it got, by tensor and name. Holds the tensors until `forget`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._asked: dict[tuple[int, str], tuple[torch.Tensor, Fact, Any]] = {}

    def forget(self) -> None:
        """Drop what was asked."""
        self._asked.clear()

    def note(self, func: Any, tensor: torch.Tensor) -> None:
        """Note that the program calls `func`, one of `FACTS`, with this tensor."""
        if is_of_transform(tensor):
            return
        with DisableTorchFunctionSubclass():
            fact = FACTS[func]
            if isinstance(tensor, FakeTensor):
                if fact is _BASE:
                    self._note_way(tensor._base)
                return
            given_history = (owner for owner, _ in self._tracer.lasting.given_history)
            if not fact.may_differ(tensor) or any(tensor is owner for owner in given_history):
                return
            if func == VERSION and self._is_written(tensor):
                raise self._tracer.refuse(
                    "_version",
                    "counts what the program itself writes, which a trace does not do",
                    "ask before the program writes, or outside of it",
                )
            self._asked.setdefault((id(tensor), fact.name), (tensor, fact, fact.ask(tensor)))

    def _note_way(self, base: torch.Tensor | None) -> None:
        """Note what the inputs on the way from a view of the run's to its base are views of."""
        given = [value.handle for value in self._tracer.tape.values.values() if value.is_input]
        for handle in given if base is not None and not isinstance(base, FakeTensor) else ():
            if handle is base or handle._base is base:
                self._asked.setdefault((id(handle), _BASE.name), (handle, _BASE, _BASE.ask(handle)))

    def _is_written(self, tensor: torch.Tensor) -> bool:
        value = self._tracer.tape.values.get(id(tensor))
        return value is not None and storage_of(value.fake) in self._tracer.tape.mutated

    def of_run(
        self, found: Survey, checked: Sequence[torch.Tensor], has_grad: Iterable[torch.Tensor]
    ) -> list[AskedFact]:
        """The facts of arguments, and of state that can be found again. `checked` are the arguments and the state that are
        inputs; for arguments that `has_grad` gives, the run asked whether there is a gradient, and there was one."""
        with DisableTorchFunctionSubclass():
            asked = [
                (tensor, fact, base_among(tensor, checked) if fact is _BASE and answer is False else answer)
                for tensor, fact, answer in self._asked.values()
            ]
            asked += [(tensor, HAS_GRADIENT, HAS_GRADIENT.ask(tensor)) for tensor in has_grad]
        places = ((found.tensor_at(tensor), fact, answer) for tensor, fact, answer in asked)
        return [_at(first, fact, answer) for (first, *_), fact, answer in filter(itemgetter(0), places)]


def _at(place: Place, fact: Fact, answer: Any) -> AskedFact:
    source = Argument(place.key) if place.how is How.ARGUMENT else State(place)
    return AskedFact(source, str(place), fact.name, answer)
