"""Libraries that note by a tensor's class what they found out about it know the classes of traced tensors, too.

einops asks each framework once whether a tensor is one of its own, and notes the answer under `type(tensor)`. What a trace
computes has a class of its own. Without a note for that, each trace would ask all frameworks, all they look at would be guarded,
and the note that the trace leaves would make the next call another one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from treeplay.torch_seam.fakes import CLASSES_WITHOUT_DATA

_NOTES: tuple[tuple[str, Callable[[Any], dict[Any, Any]]], ...] = (
    ("einops._backends", lambda module: module._type2backend),
    (
        "einx._src.frontend.backend",
        lambda module: module.registry.state.tensortypes_to_backend,
    ),  # under tuples of classes
)
"""Modules of libraries, and where each notes something by the classes of tensors."""


def known_as_tensors() -> None:
    """Note for traced tensors what libraries have noted for `torch.Tensor`. Only what is missing: what they find in a call
    stays there for later ones, as what they find themselves does."""
    for name, notes_of in _NOTES:
        module = sys.modules.get(name)
        try:
            notes = notes_of(module) if module is not None else {}
        except AttributeError:  # another release of the library, which notes it elsewhere
            continue
        for key, found in [*notes.items()]:
            for cls in CLASSES_WITHOUT_DATA:
                other = tuple(cls if each is torch.Tensor else each for each in key) if isinstance(key, tuple) else cls
                if key is torch.Tensor or (isinstance(key, tuple) and torch.Tensor in key):
                    notes.setdefault(other, found)
