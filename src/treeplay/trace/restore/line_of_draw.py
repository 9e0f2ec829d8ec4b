"""The line of a program that drew from a random generator of Python's or NumPy's, or seeded it.

Nobody is told of a draw. After the run it is known which generator has moved, and which code ran: the line is looked for that
gets at this generator, `np.random.beta` or `rng.normal`, by what the names stand for; then one that calls something by the name
of one of its methods, of what no name tells (`self.rng.normal`).
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Mapping, Sequence
from inspect import unwrap
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from treeplay.guards.entries import content_of
from treeplay.guards.reads.functions import function_with_code, functions_with
from treeplay.guards.reads.names import steps_by_line
from treeplay.guards.reads.reads import Reads
from treeplay.observe.lines import is_user_file, is_users
from treeplay.torch_seam.patched import ABSENT
from treeplay.values.kinds import is_a
from treeplay.values.location import Location

_UNKNOWN = object()  # what a name stands for while the program runs
_BETWEEN = frozenset({"PUSH_NULL", "PRECALL", "EXTENDED_ARG"})


def line_of_draw(generator: Any, reads: Reads) -> Location | None:
    """Where the run used a generator, as far as can be told."""
    # The user's own first, then that of libraries.
    code = [one for one in reads.ran if is_users(one.co_filename)]
    code.sort(key=lambda one: not is_user_file(one.co_filename))
    names = {one: _names_of(one) for one in code}
    for is_told in (True, False):
        for one in code:
            for line, steps in steps_by_line(one).items():
                if any(_uses(generator, chain, is_told=is_told) for chain in _chains(steps, names[one])):
                    return Location(one.co_filename, line, one.co_name, _own_line_to(one, names))
    return None


def _own_line_to(code: CodeType, names: Mapping[CodeType, Mapping[str, Any]]) -> Location | None:
    """The user's own line that leads to code of a library, among the code that ran; None for code of the user's own."""
    reached, waiting = {code}, [code]
    while waiting and not is_user_file(code.co_filename):
        wanted = waiting.pop(0)
        for one in names:  # the user's own first
            for line, steps in steps_by_line(one).items() if one not in reached else ():
                if any(_calls(wanted, *chain) for chain in _chains(steps, names[one])):
                    if is_user_file(one.co_filename):
                        return Location(one.co_filename, line, one.co_name)
                    reached.add(one)
                    waiting.append(one)
                    break
    return None


def _calls(code: CodeType, found: Any, name: str) -> bool:
    """Whether what a line looks up is the function with this code, or a method by its name of what no name tells."""
    if is_a(found, FunctionType):
        return getattr(unwrap(found), "__code__", None) is code or found.__code__ is code
    return found is _UNKNOWN and name == code.co_name


def _names_of(code: CodeType) -> Mapping[str, Any]:
    """What the names of a function stand for, but for its local variables."""
    function = function_with_code(code) or next(iter(functions_with([code])), None)
    if function is None:
        return {}
    cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
    return {**function.__globals__, **{name: content_of(cell) for name, cell in cells}}


def _chains(steps: Sequence[dis.Instruction], names: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """What each look-up of a line finds, as `np`, `np.random` and `np.random.beta`, and the last of the names."""
    found: Any = ABSENT
    for step in steps:
        if "ATTR" in step.opname or step.opname == "LOAD_METHOD":
            found = vars(found).get(step.argval, ABSENT) if type(found) is ModuleType else _UNKNOWN
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            found = names.get(step.argval, ABSENT)
        elif step.opname not in _BETWEEN:
            found = _UNKNOWN if step.opname.startswith("LOAD_FAST") else ABSENT
            continue
        yield found, str(step.argval)


def _uses(generator: Any, looked_up: tuple[Any, str], *, is_told: bool) -> bool:
    found, name = looked_up
    if is_told:
        numpy = sys.modules.get("numpy")
        if numpy is not None and found is numpy.random.seed:  # a function, and all others are methods
            return generator is numpy.random.get_state.__self__
        return found is generator or (is_a(found, (BuiltinFunctionType, MethodType)) and found.__self__ is generator)
    return found is _UNKNOWN and not name.startswith("_") and callable(getattr(type(generator), name, None))
