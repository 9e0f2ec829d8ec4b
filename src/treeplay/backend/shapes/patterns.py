"""Graphs that write their inputs: compiled once for each way in which the inputs of a call share memory.

compile for one pattern ─▶ call fits ─▶ run         does not fit ─▶ the others ─▶ none does ─▶ compile for it, run

A compiled call finds out by itself, before it does anything, whether it fits, and only where something is written. So
calls of the usual pattern pay nothing here. Parameters that need a gradient again, where Dynamo does not see it, are such a
pattern too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.backend.shapes.sizes import CompileFor, Function, fakes_of
from treeplay.errors import PatternChanged
from treeplay.settings import settings
from treeplay.torch_seam.fakes import has_data
from treeplay.values.overlap import overlapping
from treeplay.wrap.aot.plan.overlap import overlap_across_storages

_MOST_UNFIT = 2
"""After that many compiles that did not fit their own call, calls that fit nothing run as they are."""


def with_patterns(inputs: Sequence[Any], compile_next: CompileFor, as_it_is: Callable[[], Function]) -> Function:
    """Compile through `compile_next`, and again for a call whose inputs share memory in another way.

    What `compile_next` could not compile, and says so by the attribute `is_uncompiled`, fits every call and is asked last.
    The newest are kept, as many as recordings of one program. Where what was compiled for a call does not fit that very call,
    its inputs share memory in a way that tensors without data cannot show (those of one NumPy array): it runs `as_it_is`.

    What fits every call says so by the attribute `fits_every_call`. What does not first asks those in the list `others`, and
    where it does not fit either, goes on with what is in `for_others`: so nothing stands in front of the first pattern."""
    first: Any = compile_next(inputs)
    if first.fits_every_call:
        return first  # type: ignore[no-any-return]
    uncompiled: list[Function] = []
    plain: list[Function] = []
    unfit = 0

    def call_of_another_pattern(*args: Any) -> Any:
        nonlocal unfit
        if uncompiled:
            return uncompiled[0](*args)
        if unfit < _MOST_UNFIT and not lie_across_storages(args):
            made = compile_next(fakes_of(args))
            if hasattr(made, "is_uncompiled"):
                uncompiled.append(made)
            else:
                others.insert(0, made)
                # The first pattern is kept beside these.
                del others[max(1, settings.max_recordings_per_program - 1) :]
            # Raised where it does not fit either, before it has done anything.
            with contextlib.suppress(PatternChanged):
                return made(*args)
            unfit += 1
        if not plain:
            plain.append(as_it_is())
        return plain[0](*args)

    others: list[Function] = first.others
    first.for_others.append(call_of_another_pattern)
    return first  # type: ignore[no-any-return]


def lie_across_storages(args: Sequence[Any]) -> bool:
    """Whether two inputs have memory in common that is no one storage of torch's."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and has_data(arg) and not arg.is_nested]
    pairs = overlapping(tensors, range(len(tensors)))
    return any(overlap_across_storages(tensors[one], tensors[other]) for one, other in pairs)
