"""Graphs with symbolic sizes: compiled for the sizes of a call, when a call brings them.

compile ─▶ nothing yet        call with sizes A ─▶ compile for A, run        call with sizes A again ─▶ run
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from treeplay.backend import torch_private
from treeplay.settings import settings

Call = Callable[..., Any]
Compile = Callable[[Sequence[Any]], Call]


def with_known_sizes(inputs: Sequence[Any], compile_next: Compile) -> Call:
    """Compile through `compile_next`, which is given inputs without symbolic numbers.

    Of the callables for different sizes, the newest are kept, as many as recordings of one program."""
    if not any(map(_is_symbolic, inputs)):
        return compile_next(inputs)
    known: dict[tuple[Any, ...], Call] = {}

    def call(*args: Any) -> Any:
        key = tuple(map(_sizes, args))
        compiled = known.get(key)
        if compiled is None:
            while len(known) >= settings.max_recordings_per_program:
                del known[next(iter(known))]
            compiled = known[key] = compile_next(_fakes(args))
        return compiled(*args)

    return call


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        numbers = (*value.size(), *value.stride(), value.storage_offset())
        return any(isinstance(number, torch.SymInt) for number in numbers)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _sizes(value: Any) -> Any:
    if torch_private.is_wrapper(value):  # its own sizes may be symbols that stand for the sizes inside
        names, _ = value.__tensor_flatten__()
        return type(value), tuple(_sizes(getattr(value, name)) for name in names)
    if isinstance(value, torch.Tensor):
        return value.size(), value.stride(), value.storage_offset()
    return type(value), value


def _fakes(args: Sequence[Any]) -> list[Any]:
    """Fakes of one mode, so that nothing is compiled for an address or a value; one tensor stays one."""
    mode = torch_private.fake_mode_of(args) or FakeTensorMode(shape_env=ShapeEnv())  # which nested tensors need
    return [mode.from_tensor(arg, static_shapes=True) if isinstance(arg, torch.Tensor) else arg for arg in args]
