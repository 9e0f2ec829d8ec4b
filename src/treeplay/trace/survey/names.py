"""Names on the way: a value that a survey finds counts as read only if code of the program has all the names that lead to it.

`self.rate` needs the name `rate` in some code that the program can run; a global of the user's needs its name; an item under a
string needs the string. A number of the user's may lack the last of them where code of the user's own computes such names or
strings. `ReadNames` collects what code has, `Names` are what a value needs. Whose code and classes they are counts too: those
of the standard library and of torch are not followed, and of an installed package only numbers are watched.
"""

from __future__ import annotations

import dis
import enum
import itertools
import sys
from collections.abc import Callable, Iterable, Set
from functools import lru_cache
from types import CodeType, FunctionType
from typing import NamedTuple

from treeplay.guards.reads.names import (
    computes_names,
    inner_code,
    loaded_as_values,
    names_within,
    strings_within,
    takes_tables,
    values_within,
)
from treeplay.observe.lines import is_own_or_text, is_users, is_users_or_text
from treeplay.values.arithmetic import FUNCTIONS
from treeplay.values.kinds import module_of

# Objects of these have nothing of the program's; but namespaces of the standard library hold settings.
_OF_SETTINGS = {"types", "argparse"}
_OF_MATH = frozenset(function.__name__ for function in FUNCTIONS)
_STANDARD = sys.stdlib_module_names - _OF_SETTINGS
_LIBRARIES = frozenset({"torch", "treeplay", "numpy", "triton"})


class _Mark(enum.Enum):
    """Stands among the names on the way to a value."""

    FOREIGN = "in the code of an installed package: only numbers are watched, the rest seldom changes"
    NEVER = "in an optimizer: its numbers are inputs, or watched when it steps"
    DATA = "in a large dictionary: of what code goes through there, numbers are no settings"


class ItemName(NamedTuple):
    """A string under which a dictionary has an item."""

    text: str


Names = frozenset[str | ItemName | _Mark]
ALWAYS: Names = frozenset()
FOREIGN: Names = frozenset({_Mark.FOREIGN})
NEVER: Names = frozenset({_Mark.NEVER})
DATA: Names = frozenset({_Mark.DATA})


_SUBSCRIPTS = frozenset({"BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR"})
_SPELLED_OUT = frozenset({"LOAD_CONST", "BUILD_SLICE", "BUILD_TUPLE"})  # the latter are no strings
_AT_WORK = frozenset({"EXTENDED_ARG", "COPY"})  # between a key and its subscript
_GO_THROUGH = frozenset({"items", "values", "get", "pop", "popitem", "setdefault", "update", "copy", "itemgetter"})
_MERGES = frozenset({"DICT_MERGE", "DICT_UPDATE"})  # `f(**table)`, `{**table}`


@lru_cache(maxsize=8192)
def computes_keys(code: CodeType) -> bool:
    """Whether `code` itself may ask a dictionary for items under strings that it does not spell out."""
    if not _GO_THROUGH.isdisjoint(code.co_names):
        return True
    steps = [step.opname for step in dis.get_instructions(code) if step.opname not in _AT_WORK]
    # A store behind a swap is that of `table[key] += 1`, which has loaded the item before.
    return not _MERGES.isdisjoint(steps) or any(
        step in _SUBSCRIPTS and before not in _SPELLED_OUT and before != "SWAP"
        for before, step in itertools.pairwise(steps)
    )


@lru_cache(maxsize=8192)
def keys_given_within(code: CodeType) -> frozenset[str]:
    """The keys that `code`, or a function it defines, gives dictionaries (`{"n": n, "x": x}`, `dict(n=n)`): in one tuple."""
    tuples = (one for each in (code, *inner_code(code)) for one in each.co_consts if isinstance(one, tuple))
    return frozenset(text for one in tuples for text in one if isinstance(text, str))


def _computes_attributes(code: CodeType) -> bool:
    """Whether `code` itself may ask an object for attributes whose names it does not spell out, also in its `__dict__`."""
    return computes_names(code) or takes_tables(code, of_self=True)


_COMPUTED: dict[type, Callable[[CodeType], bool]] = {str: _computes_attributes, ItemName: computes_keys}


class ReadNames:
    """The names in the code of the functions that the program can run; `ran`, those in code that an earlier run is known to
    have run, which a survey need not come to: of classes of installed packages not every method is followed."""

    def __init__(self, ran: Set[str] = frozenset()) -> None:
        self._values: set[str | ItemName | _Mark] = {*ran}  # read as values, or strings
        self.any: set[str | ItemName | _Mark] = set()  # with those of methods
        self.of_math: set[str] = set()  # functions of `math` that are read as values
        self._own: set[str | ItemName | _Mark] = set()  # those in code that is not of an installed package
        # Whether such code computes names of attributes (`str`), or strings (`ItemName`).
        self._computes: set[type] = set()

    def read(self, function: FunctionType) -> None:
        """Note a function that the program can run."""
        code = function.__code__
        values = values_within(code) | strings_within(code) | keys_given_within(code)
        self._values |= values
        self.any |= values | names_within(code)
        self.of_math |= loaded_as_values(code, _OF_MATH)
        if is_own_or_text(code.co_filename):
            self._own |= names_within(code) | strings_within(code)
            for each in (code, *inner_code(code)):
                self._computes |= {kind for kind, asks in _COMPUTED.items() if asks(each)}

    def has_value(self, needs: Names, *, is_function: bool, is_number: bool) -> bool:
        """Whether a plain value counts as read that needs these names.

        `opt.step()` reads no number of that name, but `self.act(x)` does read the function."""
        names = self.any if is_function else self._values
        left = needs - FOREIGN - DATA - names
        missing = [need for need in left if not isinstance(need, ItemName) or need.text not in names]
        if is_number and len(missing) == 1 and needs.isdisjoint(_Mark):
            return type(missing[0]) in self._computes
        return not missing and (is_number or not needs >= FOREIGN)

    def has_iterator(self, needs: Names) -> bool:
        """Whether an iterator counts as read that needs these names."""
        return needs <= self.any or needs - FOREIGN <= self._own


def read_in(code: Iterable[CodeType]) -> set[str]:
    """The names that the program's part of this code reads as values, and its strings."""
    users = [one for one in code if is_users_or_text(one.co_filename)]
    names = (values_within(one) | strings_within(one) | keys_given_within(one) for one in users)
    return set().union(*names)


def is_of_library(module: str) -> bool:
    """Whether the classes of this module are not followed. A package of the user's may be named as one of the standard
    library's is (`code`, `profile`): there the file decides, as the module has it, which a built-in one has not."""
    package = module.partition(".")[0]
    if package not in _STANDARD:
        return package in _LIBRARIES
    file = getattr(sys.modules.get(package), "__file__", None)
    return file is None or not is_users(file)


def is_users_class(cls: type) -> bool:
    """Whether a class is followed."""
    return not is_of_library(module_of(cls)) and not issubclass(cls, enum.Enum)


def origin(cls: type) -> Names:
    """What values in objects of a class need, for being there."""
    module = module_of(cls)
    packages = (sys.modules.get(name) for name in (module, module.partition(".")[0]))
    file = next((file for package in packages if (file := getattr(package, "__file__", None)) is not None), None)
    # Of a module that has no file, or is not loaded, the user has run the code, as that of a script or a notebook.
    is_own = module in {"__main__", *_OF_SETTINGS} or (file is None and not is_of_library(module))
    return ALWAYS if is_own or (file is not None and is_own_or_text(file)) else FOREIGN
