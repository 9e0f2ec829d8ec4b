"""Symbolic sizes of our own: tensors without data some of whose sizes are not known, and what is asked of these sizes.

x[2, 12] ─ fake_of(x, {1}) ▶ fake[2, s0] ─ a program, a compiler ask: s0 > 8? ─ asked() ▶ "x_size_1 > 8"

The question is answered for the size that the example has. So what was made holds where the answers are the same.
Imports Dynamo.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._dynamo.source import LocalSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from treeplay.torch_seam.fakes import FakeTensor, FakeTensorMode
from treeplay.torch_seam.patched import Shared, all_wanted
from treeplay.torch_seam.symbols import NAMES, example_of

_KNOWN = frozenset({*NAMES, "abs", "max", "min", "round", "float", "int", "not", "and", "or", "if", "else"})
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_TORCH = os.path.dirname(torch.__file__) + os.sep


class SymbolicSizes:
    """The symbols of one trace. Sizes that are equal in the example are symbols of their own."""

    def __init__(self) -> None:
        self._environment = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self._environment)
        self._fakes: dict[str, FakeTensor] = {}
        self._changing: dict[str, frozenset[int]] = {}

    def fake_of(self, tensor: torch.Tensor, name: str, changing: Collection[int] = ()) -> FakeTensor:
        """A fake of `tensor`, with a symbol for the size of each dimension in `changing`: of one that is 0 or 1 there is none,
        since torch takes these for known."""
        if not changing:
            return fake_of(tensor, self.mode)
        dimensions = range(tensor.dim())
        context: Any = StatelessSymbolicContext(
            dynamic_sizes=[DimDynamic.DYNAMIC if at in changing else DimDynamic.STATIC for at in dimensions],
            dynamic_strides=[DimDynamic.INFER_STRIDE for _ in dimensions],
            constraint_sizes=[None for _ in dimensions],
        )
        # Where it lies in its storage, and what it is a view of, may be otherwise in each call.
        fake = self.mode.from_tensor(_alone(tensor), source=LocalSource(name), symbolic_context=context)
        self._fakes[name], self._changing[name] = fake, frozenset(changing)
        return fake

    def changing(self) -> list[tuple[str, int]]:
        """The tensors and dimensions whose sizes are symbols, in order."""
        return [(name, at) for name, dimensions in self._changing.items() for at in sorted(dimensions)]

    def fixed(self) -> list[tuple[str, int]]:
        """The tensors and dimensions whose size is a known one by now, though it was to be a symbol."""
        return [(name, at) for name, at in self.changing() if _known(self._fakes[name].size(at)) is not None]

    def asked(self) -> tuple[list[str], dict[str, tuple[str, str, int]]] | None:
        """The questions, in Python, that have to be answered with yes, and what the names in them are: a tensor's name, a
        method of it and what that is given. None where a question cannot be written in Python."""
        numbers = {f"{name}_size_{at}": (name, "size", at) for name, at in self.changing()}

        def name_of(source: Any) -> str:
            tensor, what = source.base.local_name, source.prop.name.lower()
            at = -1 if source.idx is None else source.idx
            name = f"{tensor}_{what}_{at}" if at >= 0 else f"{tensor}_{what}"
            numbers[name] = tensor, what, at
            return name

        names = list(self._fakes)
        found: list[str] = self._environment.produce_guards(
            [self._fakes[name] for name in names],
            [LocalSource(name) for name in names],
            source_ref=name_of,
            ignore_static=False,
        )
        found = [question for question in found if not self._is_known_anyway(question, numbers)]
        words = {word for text in found for word in _WORD.findall(text)}
        return (found, numbers) if words <= {*numbers, *_KNOWN} and not self._waits() else None

    def _is_known_anyway(self, question: str, numbers: dict[str, tuple[str, str, int]]) -> bool:
        """Whether it is about a size that does not change, or where in its storage a tensor begins."""
        name, _, number = question.partition(" == ")
        if name not in numbers or not number.isdecimal():
            return False
        tensor, what, at = numbers[name]
        return what == "storage_offset" or (what == "size" and at not in self._changing[tensor])

    def _waits(self) -> bool:
        """Whether a question depends on what tensors hold."""
        return bool(self._environment.deferred_runtime_asserts)


def fake_of(tensor: torch.Tensor, mode: FakeTensorMode) -> FakeTensor:
    """A fake whose sizes are known, and that is no tensor of inference mode."""
    return mode.from_tensor(_alone(tensor) if tensor.is_inference() else tensor, static_shapes=True)


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.requires_grad_(tensor.requires_grad)


def examples_in(value: Any) -> Iterator[Any]:
    """The numbers among an operator's arguments and in the shapes of its tensors, as they are in the example."""
    if isinstance(value, torch.Tensor):
        yield tuple(map(example_of, value.size()))
    elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        yield value.node.hint
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from examples_in(part)
    elif isinstance(value, dict):
        yield from examples_in(list(value.values()))
    elif isinstance(value, (bool, int, float, complex, str, torch.dtype)):
        yield value


def _known(size: Any) -> int | None:
    found: int | None = size.node.maybe_as_int() if isinstance(size, torch.SymInt) else size
    return found


def _shown_as_number(to_number: Callable[[Any], Any]) -> Callable[[Any, Callable[[], bool]], Any]:
    def shown(original: Any, is_wanted: Callable[[], bool]) -> Any:
        def __repr__(self: Any) -> str:
            if is_wanted() and not sys._getframe(1).f_code.co_filename.startswith(_TORCH):
                return repr(to_number(self))  # which fixes it
            text: str = original(self)
            return text

        return __repr__

    return shown


_texts = [
    Shared(owner, "__repr__", _shown_as_number(to_number))
    for owner, to_number in ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool))
]


def shown_as_numbers() -> contextlib.AbstractContextManager[None]:
    """For a block in this thread, the text of a symbol is that of its number, for all but torch: the symbol is fixed then."""
    return all_wanted(_texts)
