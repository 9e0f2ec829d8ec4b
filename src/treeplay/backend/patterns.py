"""Graphs that write their inputs: compiled once for each way in which the inputs of a call share memory.

compile for one pattern ─▶ call fits ─▶ run         does not fit ─▶ the others ─▶ none does ─▶ compile for it, run

A compiled call finds out by itself, before it does anything, whether it fits, and only where something is written. So
calls of the usual pattern pay nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from treeplay.backend.sizes import fakes_of
from treeplay.errors import PatternChanged
from treeplay.settings import settings

Call = Callable[..., Any]
Compile = Callable[[Sequence[Any]], Call]


def with_patterns(inputs: Sequence[Any], compile_next: Compile) -> Call:
    """Compile through `compile_next`, and again for a call whose inputs share memory in another way.

    What `compile_next` could not compile, and says so by the attribute `is_uncompiled`, fits every call and is asked last.
    The newest are kept, as many as recordings of one program."""
    known = [compile_next(inputs)]

    def call(*args: Any) -> Any:
        for compiled in known:
            try:
                return compiled(*args)
            except PatternChanged:  # nothing has run yet
                continue
        made = compile_next(fakes_of(args))
        known.insert(len(known) if hasattr(made, "is_uncompiled") else 0, made)
        del known[settings.max_recordings_per_program :]
        return made(*args)

    return call
