"""Tensors that a program makes from Python numbers while it is traced.

One number becomes an operator, more become an input of their own, which lasts as long as the recording. If some of the numbers
are symbols (`make_of`), the tensor is a function of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.observe.lines import call_site, user_location
from treeplay.trace.log import SYMBOLIC, LoggedCall
from treeplay.trace.numbers.scalars import scalar_of
from treeplay.trace.run.tape import TracedValue, TraceTape, content
from treeplay.values.location import Location

aten = torch.ops.aten


class Constants:
    """Writes constants on the tape."""

    def __init__(self, tape: TraceTape) -> None:
        self._tape = tape
        self._numbers: tuple[Any, ...] = ()  # of which the next constant is made

    def make_of(self, make: Callable[..., Any], numbers: Sequence[Any], data: Any, kwargs: dict[str, Any]) -> Any:
        """What `make(data)` gives, as a function of `numbers`; `data` are their values in this call."""
        self._numbers = tuple(numbers)
        try:
            return make(data, **kwargs)
        finally:
            self._numbers = ()

    def lifted(self, tensor: torch.Tensor, where: Location | None) -> TracedValue:
        """The value of a tensor that torch has just made from numbers."""
        numbers, self._numbers = self._numbers, ()
        shown = (SYMBOLIC,) * tensor.numel() if numbers else content(tensor)
        self._tape.log.append(LoggedCall.of_constant(tensor, shown, where, call_site()))
        return self._tape.keep(tensor, self._made_of(tensor, numbers) if numbers else self._constant(tensor))

    def _constant(self, tensor: torch.Tensor) -> TracedValue:
        if tensor.numel() != 1:
            return self._tape.add_input(tensor.clone(), is_constant=True)
        return self._full(tensor, list(tensor.shape), tensor.item())

    def _made_of(self, tensor: torch.Tensor, numbers: Sequence[Any]) -> TracedValue:
        if tensor.numel() == 1:
            return self._full(tensor, list(tensor.shape), numbers[0])
        parts = [self._full(tensor, [], number) for number in numbers]
        with self._tape.fake_mode:
            fake = aten.stack.default([part.fake for part in parts])
        node = self._tape.call(aten.stack.default, ([part.node for part in parts],), {}, where=user_location())
        self._tape.add_tensor(fake, node, {})
        return self._tape.values[id(fake)]

    def _full(self, like: torch.Tensor, shape: list[int], number: Any) -> TracedValue:
        options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
        scalar = scalar_of(number)
        with self._tape.fake_mode:
            fake = aten.full.default(shape, 0, **options)
        given = (shape, number if scalar is None else self._tape.number(scalar))
        self._tape.add_tensor(fake, self._tape.call(aten.full.default, given, options, where=user_location()), {})
        return self._tape.values[id(fake)]
