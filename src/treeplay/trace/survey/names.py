"""Names on the way: a value that a survey finds counts as read only if code of the program has all the names that lead to it.

`self.rate` needs the name `rate` in some code that the program can run; a global of the user's needs its name; an item under a
string needs the string. `ReadNames` collects what code has, `Names` are what a value needs. Whose code and classes they are
counts too: those of the standard library and of torch are not followed, and of an installed package only numbers are watched.
"""

from __future__ import annotations

import enum
import sys
from types import FunctionType

from treeplay.guards.reads.names import loaded_as_values, names_within, strings_within, values_within
from treeplay.observe.lines import is_own_or_text, is_users
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


Names = frozenset[str | _Mark]
ALWAYS: Names = frozenset()
FOREIGN: Names = frozenset({_Mark.FOREIGN})
NEVER: Names = frozenset({_Mark.NEVER})


class ReadNames:
    """The names in the code of the functions that the program can run."""

    def __init__(self) -> None:
        self._values: set[str | _Mark] = set()  # read as values, or strings
        self.any: set[str | _Mark] = set()  # with those of methods
        self.of_math: set[str] = set()  # functions of `math` that are read as values
        self._own: set[str | _Mark] = set()  # those in code that is not of an installed package

    def read(self, function: FunctionType) -> None:
        """Note a function that the program can run."""
        code = function.__code__
        values = values_within(code) | strings_within(code)
        self._values |= values
        self.any |= values | names_within(code)
        self.of_math |= loaded_as_values(code, _OF_MATH)
        if is_own_or_text(code.co_filename):
            self._own |= names_within(code) | strings_within(code)

    def has_value(self, needs: Names, *, is_function: bool, is_number: bool) -> bool:
        """Whether a plain value counts as read that needs these names.

        `opt.step()` reads no number of that name, but `self.act(x)` does read the function."""
        names = self.any if is_function else self._values
        return needs - FOREIGN <= names and (is_number or not needs >= FOREIGN)

    def has_iterator(self, needs: Names) -> bool:
        """Whether an iterator counts as read that needs these names."""
        return needs <= self.any or needs - FOREIGN <= self._own


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
    file = getattr(sys.modules.get(module_of(cls)), "__file__", None)
    is_own = module_of(cls) in {"__main__", *_OF_SETTINGS}  # the first may have no file
    return ALWAYS if is_own or (file is not None and is_own_or_text(file)) else FOREIGN
