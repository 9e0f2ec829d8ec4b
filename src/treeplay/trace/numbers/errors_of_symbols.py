"""Errors that the symbol in the place of a number causes: what takes numbers alone raises where eager goes on.

    try: text = json.dumps({"step": self.step})      in a trace, the program would go the way of its handler
    except TypeError: text = "?"

Of an error that nobody handles the trace hears anyway. Of others it hears if the interpreter tells of each function that is
called, which makes a trace half as long again: so only a program that may have handled one is traced once more in that way.
"""

from __future__ import annotations

import contextlib
import dis
import itertools
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import CodeType, TracebackType

import torch

from treeplay.observe.lines import OURS, TORCH, failed_call, is_users_or_text
from treeplay.sandbox.errors_told import errors_told
from treeplay.trace.numbers.scalars import scalar_of
from treeplay.trace.signature.make import has_symbol
from treeplay.values.location import Location
from treeplay.values.signature import Number

_CLASSES = re.compile(r"\bSym(Int|Float|Bool)\b")
_SYMBOL_OF = {True: torch.SymInt.__name__, False: torch.SymFloat.__name__}  # by whether a number is an integer
# What is not raised for the class of an argument.
_OTHERS = ("AttributeError", "KeyError", "IndexError", "StopIteration", "ImportError", "OSError", "ZeroDivisionError")


class ErrorsOfSymbols:
    """Notes the first error of a run that a symbol has caused."""

    def __init__(self) -> None:
        self.is_any = False
        self.where: Location | None = None
        self._held: tuple[str, ...] = ()
        self._kind: str | None = None

    def note(self, error: BaseException, trace: TracebackType | None) -> None:
        """Told of an error, once or for each function that it comes through."""
        # Its text may tell the class that a symbol says it has, or none.
        told = _class_told(error)
        if self.is_any or (told is None and not isinstance(error, TypeError)):
            return
        held = _held_where_raised(trace)
        if told is not None or held:
            self.is_any, self.where = True, failed_call(trace).where
            self._held = tuple(text for kind, text in held if text and told in (None, kind))
            self._kind = told

    def suspects(self, numbers: Sequence[Number]) -> Sequence[Number]:
        """Those of `numbers` that the code that failed had at hand, or what was computed of them; else those of the class told.

        Where these are the wrong ones, the program fails again without them, and others are told.
        """
        held = [each for each in numbers if any(has_symbol(text, each.name) for text in self._held)]
        return held or [each for each in numbers if self._kind == _SYMBOL_OF[isinstance(each.value, int)]] or numbers

    def told(self) -> contextlib.AbstractContextManager[None]:
        """In the block, those that the program handles are noted too."""
        return errors_told(self.note, _is_the_programs)


def may_have_handled(code: Mapping[int, CodeType] | None) -> bool:
    """Whether code of the user's among what ran may have handled an error that was raised for the class of an argument."""
    return code is None or any(is_users_or_text(each.co_filename) and _handles(each) for each in code.values())


def _class_told(error: BaseException) -> str | None:
    """The class of symbols that an error's text names."""
    told = (_CLASSES.search(arg) for arg in error.args if isinstance(arg, str))
    return next((found[0] for found in told if found), None)


def _held_where_raised(trace: TracebackType | None) -> list[tuple[str, str | None]]:
    """The classes and texts of the symbols among the local variables of the code in which an error was raised."""
    if trace is None:
        return []
    while trace.tb_next is not None:
        trace = trace.tb_next
    symbols = ((value, scalar_of(value)) for value in trace.tb_frame.f_locals.values())
    return [(type(value).__name__, scalar.text) for value, scalar in symbols if scalar is not None]


def _is_the_programs(code: CodeType) -> bool:
    return bool(code.co_exceptiontable) and not code.co_filename.startswith((TORCH, OURS))


@lru_cache(maxsize=8192)
def _handles(code: CodeType) -> bool:
    """Whether `code` itself has an `except` for such errors, or may suppress them."""
    if "suppress" in code.co_names:
        return True
    if not code.co_exceptiontable:
        return False
    for before, step in itertools.pairwise(dis.get_instructions(code)):
        if step.opname in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH") and before.argval not in _OTHERS:
            return True
        if before.opname == "PUSH_EXC_INFO" and step.opname == "POP_TOP":  # `except:`
            return True
    return False
