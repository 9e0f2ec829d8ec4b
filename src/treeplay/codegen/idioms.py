"""Phrases that several generated functions have in common, each written in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, MethodType
from typing import Any

import torch

from treeplay.codegen.writer import Writer, list_of
from treeplay.torch_seam import autograd, flags
from treeplay.values.layout import Layout
from treeplay.values.same import is_same, is_value

_EXACT = (int, str, bytes, MethodType, BuiltinFunctionType)  # whose `==` takes nothing but the same


def is_exactly(text: Writer, value: str, recorded: Any) -> str:
    """The condition that a Python value is the recorded one: exactly, and without a call of an `__eq__` of its own."""
    if recorded is None or isinstance(recorded, bool):
        return f"{value} is {recorded}"
    constant = text.literal(recorded)
    # No zero, whose sign `==` does not see, and no NaN.
    is_usual = type(recorded) is float and recorded != 0 and recorded == recorded
    if any(type(recorded) is cls for cls in _EXACT) or is_usual:
        return f"type({value}) is {text.constant(type(recorded))} and {value} == {constant}"
    if not is_value(recorded):
        return f"{value} is {constant}"
    text.use("is_same", is_same)  # 0.0 is not -0.0, a NaN is a NaN, and parts of a tuple count with their types
    return f"{value} is {constant} or is_same({value}, {constant})"


def view_expression(base: str, layout: Layout | None, *, is_whole: bool) -> str:
    """A view of `base` whose offset counts from where that begins; without a layout `base` itself. `is_whole`: it begins where
    its memory does."""
    if layout is None:
        return base
    addend = f" + {layout.offset}" if layout.offset else ""
    start = str(layout.offset) if is_whole else f"{base}.storage_offset(){addend}"
    return f"{base}.as_strided({layout.shape}, {layout.stride}, {start})"


def note_writes(text: Writer, tensors: Iterable[str]) -> None:
    """Tell autograd that tensors were written, or will be."""
    text.use("increment_versions", autograd.increment_versions)
    text.add(f"increment_versions({list_of(tensors)})")


@dataclass(frozen=True, slots=True)
class Switch:
    """A mode of the thread that is `wanted` while some lines run. `name` is the variable with what it was before; without
    one it is known to be the opposite."""

    name: str | None
    ask: Callable[[], bool]
    set: Callable[[bool], object]
    wanted: bool


NO_GRAD = Switch(None, torch.is_grad_enabled, flags.set_grad_enabled, False)
WITH_GRAD = replace(NO_GRAD, wanted=True)
GRAD_MODES = {False: NO_GRAD, True: WITH_GRAD}


def switched(
    text: Writer, switches: Sequence[Switch], lines: Sequence[str], after: Sequence[str] = (), *, is_short: bool = False
) -> None:
    """Write `lines` under modes that are put back whatever happens; then `after`, whatever happens. With `is_short` they are
    simple statements, and it takes two lines."""
    before, within, restored = [], [], []
    for switch in switches:
        change = text.name(switch.set, switch.set.__name__.strip("_"))
        condition = ""
        if switch.name is not None:
            before.append(f"{switch.name} = {text.name(switch.ask, switch.ask.__name__.strip('_'))}()")
            condition = f"{switch.name} {'or' if switch.wanted else 'and'} "
        within.append(f"{condition}{change}({switch.wanted})")
        restored.append(f"{condition}{change}({not switch.wanted})")
    text.add(*before)
    if is_short:
        text.add(f"try: {'; '.join([*within, *lines])}", f"finally: {'; '.join([*restored, *after])}")
        return
    with text.block("try:"):  # Ctrl-C may come right after a mode was set
        text.add(*within, *lines)
    with text.block("finally:"):
        text.add(*restored, *after)
