"""Libraries that note by a tensor's class what they found out about it know the classes of traced tensors, too.

einops asks each framework once whether a tensor is one of its own, and notes the answer under `type(tensor)`. What a trace
computes has a class of its own. Without a note for that, each trace would ask all frameworks, all they look at would be
guarded, and the note that the trace leaves would make the next call another one.
"""

from __future__ import annotations

import sys

import torch

from treeplay.torch_seam.fakes import CLASSES_WITHOUT_DATA

_NOTES = (("einops._backends", "_type2backend"),)
"""Modules of libraries, and the names of dictionaries there with something for each class of tensors that they met."""


def known_as_tensors() -> None:
    """Note for traced tensors what libraries have noted for `torch.Tensor`. Only what is missing: what they find in a call
    stays there for later ones, as what they find themselves does."""
    for module, name in _NOTES:
        notes = getattr(sys.modules.get(module), name, None)  # another release may note it elsewhere
        if isinstance(notes, dict) and torch.Tensor in notes:
            for cls in CLASSES_WITHOUT_DATA:
                notes.setdefault(cls, notes[torch.Tensor])
