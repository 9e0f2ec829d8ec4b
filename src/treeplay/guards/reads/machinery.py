"""Machinery: which code runs only because a program is traced, and so is none of the program's."""

from __future__ import annotations

from functools import lru_cache
from types import CodeType

import torch

from treeplay.observe.lines import OURS

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
_SYMBOLS_FILE = torch.__file__  # kept: modules are watched while this is compared
_DYNAMO = "/torch/_dynamo/"  # it looks away while a program is traced


@lru_cache(maxsize=4096)
def is_machinery(file: str) -> bool:
    """Whether a file is ours, or torch's way to a dispatch mode or a symbolic number: it runs because a program is traced."""
    return file.startswith((OURS, "<frozen importlib")) or file.endswith(_OF_A_TRACE) or _DYNAMO in file


_MOST_KNOWN = 8192
_known: dict[int, tuple[CodeType, bool]] = {}  # by identity: to hash code is to hash all that is in it


def is_of_a_trace(code: CodeType) -> bool:
    """Whether code runs because a program is traced: of this package, or of torch's symbolic numbers, modes and graphs."""
    known = _known.get(id(code))
    if known is None or known[0] is not code:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        known = _known[id(code)] = code, is_machinery(code.co_filename) or _is_of_symbols(code)
    return known[1]


def _is_of_symbols(code: CodeType) -> bool:
    is_named_so = code.co_qualname.startswith(("SymFloat.", "SymBool.", "SymInt.", "sym_"))
    return is_named_so and code.co_filename == _SYMBOLS_FILE
