"""Machinery: which code runs only because a program is traced, and so is none of the program's."""

from __future__ import annotations

import sys
from functools import lru_cache
from types import CodeType, FunctionType

import torch

from treeplay.observe.lines import OURS
from treeplay.values.kinds import is_a

_OF_A_TRACE = (
    "torch/_library/simple_registry.py",
    "torch/_library/effects.py",
    "torch/_library/fake_impl.py",
    "torch/_library/utils.py",
    "torch/_ops.py",
    "torch/overrides.py",
    "torch/utils/_python_dispatch.py",
    "torch/fx/graph.py",
    "torch/fx/node.py",
    "torch/fx/immutable_collections.py",
    "torch/fx/experimental/sym_node.py",
    "torch/fx/experimental/symbolic_shapes.py",
)
_PACKAGE = __name__.partition(".")[0] + "."
_TEXT = "<string>"
_SYMBOLS_FILE = torch.__file__  # kept: modules are watched while this is compared
_SETTINGS_FILE = "torch/utils/_config_module.py"
_DYNAMO = "/torch/_dynamo/"  # it looks away while a program is traced


@lru_cache(maxsize=4096)
def is_machinery(file: str) -> bool:
    """Whether a file is ours, or torch's way to a dispatch mode or a symbolic number: it runs because a program is traced."""
    return file.startswith((OURS, "<frozen importlib")) or file.endswith(_OF_A_TRACE) or _DYNAMO in file


def is_of_a_patch(code: CodeType) -> bool:
    """Whether code is that of a `config.patch` of torch's settings, which puts back what it sets."""
    return code.co_filename.endswith(_SETTINGS_FILE) and ".ConfigPatch." in code.co_qualname


_MOST_KNOWN = 8192
_known: dict[int, tuple[CodeType, bool]] = {}  # by identity: to hash code is to hash all that is in it


def is_of_a_trace(code: CodeType) -> bool:
    """Whether code runs because a program is traced: of this package, or of torch's symbolic numbers, modes and graphs."""
    known = _known.get(id(code))
    if known is None or known[0] is not code:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        known = _known[id(code)] = code, is_machinery(code.co_filename) or _is_of_symbols(code) or _is_of_a_record(code)
    return known[1]


def _is_of_symbols(code: CodeType) -> bool:
    is_named_so = code.co_qualname.startswith(("SymFloat.", "SymBool.", "SymInt.", "sym_"))
    return is_named_so and code.co_filename == _SYMBOLS_FILE


def _is_of_a_record(code: CodeType) -> bool:
    """Whether code is a method that `dataclass` wrote for a class of this package. Were it the program's, a walk would look
    through all objects there are for its function, since it is in no file."""
    return code.co_filename == _TEXT and id(code) in _methods_of_records(len(sys.modules))


# Anew when modules were imported: the argument is how many there are.
@lru_cache(maxsize=1)
def _methods_of_records(_: int) -> dict[int, CodeType]:
    # A copy, as other threads import meanwhile.
    ours = [module for name, module in sys.modules.copy().items() if name.startswith(_PACKAGE)]
    classes = [value for module in ours for value in [*vars(module).values()] if is_a(value, type)]
    methods = [value.__code__ for cls in classes for value in vars(cls).values() if type(value) is FunctionType]
    return {id(code): code for code in methods if code.co_filename == _TEXT}
