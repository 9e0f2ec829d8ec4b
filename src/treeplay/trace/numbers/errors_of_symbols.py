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
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, TracebackType

from treeplay.observe.lines import OURS, TORCH, failed_call, is_users_or_text
from treeplay.sandbox.errors_told import errors_told
from treeplay.trace.numbers.scalars import scalar_of
from treeplay.values.location import Location

_CLASSES = re.compile(r"\bSym(Int|Float|Bool)\b")
# What is not raised for the class of an argument.
_OTHERS = ("AttributeError", "KeyError", "IndexError", "StopIteration", "ImportError", "OSError", "ZeroDivisionError")


class ErrorsOfSymbols:
    """Notes the first error of a run that a symbol has caused."""

    def __init__(self) -> None:
        self.is_any = False
        self.where: Location | None = None

    def note(self, error: BaseException, trace: TracebackType | None) -> None:
        """Told of an error, once or for each function that it comes through."""
        if not self.is_any and _is_of_a_symbol(error, trace):
            self.is_any, self.where = True, failed_call(trace).where

    def told(self) -> contextlib.AbstractContextManager[None]:
        """In the block, those that the program handles are noted too."""
        return errors_told(self.note, _is_the_programs)


def may_have_handled(code: Mapping[int, CodeType] | None) -> bool:
    """Whether code of the user's among what ran may have handled an error that was raised for the class of an argument."""
    return code is None or any(is_users_or_text(each.co_filename) and _handles(each) for each in code.values())


def _is_of_a_symbol(error: BaseException, trace: TracebackType | None) -> bool:
    if any(isinstance(arg, str) and _CLASSES.search(arg) for arg in error.args):
        return True
    # Its text may tell the class that a symbol says it has, or none.
    if trace is None or not isinstance(error, TypeError):
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return any(scalar_of(value) is not None for value in trace.tb_frame.f_locals.values())


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
