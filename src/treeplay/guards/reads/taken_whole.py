"""Objects taken whole: how code reads all attributes of one without a name of any, past what a class is told of.

Nobody sees the reads of an object whose class is in C, such as a `types.SimpleNamespace`. What code can ask it for are the
names that it has, unless it takes the object whole: makes text or a copy of it, matches it by its class, or asks whether it is
equal to another one. Of attributes that it asks for by computed names and of whole dictionaries `names` tells.
"""

from __future__ import annotations

import dis
import itertools
from functools import lru_cache
from types import CodeType

from treeplay.guards.reads.names import names_in, takes_tables

_TEXT_OR_COPY = frozenset(
    {
        *("str", "repr", "ascii", "format", "format_map", "vformat", "dumps", "dump", "pformat", "saferepr"),
        *("__str__", "__repr__", "__format__", "__dir__", "__getstate__", "__reduce__", "__reduce_ex__", "__replace__"),
    }
)
_EQUAL = frozenset({"eq", "ne", "__eq__", "__ne__", "__contains__", "contains", "index", "count", "remove"})
_TEXT_BY = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE", "MATCH_CLASS"})
_CONSTANTS = ("LOAD_CONST", "LOAD_SMALL_INT")
_BETWEEN = ("CACHE", "EXTENDED_ARG")


@lru_cache(maxsize=8192)
def takes_whole(code: CodeType) -> bool:
    """Whether `code` itself may take an object whole, but to compare it."""
    if takes_tables(code, of_self=True) or not _TEXT_OR_COPY.isdisjoint(names_in(code)):
        return True
    has_format = any(isinstance(constant, str) and "%" in constant for constant in code.co_consts)
    return any(
        step.opname in _TEXT_BY or (has_format and step.argrepr in ("%", "%=")) for step in dis.get_instructions(code)
    )


@lru_cache(maxsize=8192)
def asks_whether_equal(code: CodeType) -> bool:
    """Whether `code` itself may compare two objects: to compare one with a constant reads nothing of it."""
    if not _EQUAL.isdisjoint(names_in(code)):
        return True
    steps = [step for step in dis.get_instructions(code) if step.opname not in _BETWEEN]
    return any(
        step.opname == "CONTAINS_OP"
        or (step.opname == "COMPARE_OP" and step.argval in ("==", "!=") and not before.opname.startswith(_CONSTANTS))
        for before, step in itertools.pairwise(steps)
    )
