"""Functions whose operators torch writes out in others where it traces, run as eager does: in others, the results differ in
the last bits."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from treeplay.torch_seam.modes import as_eager
from treeplay.torch_seam.operators import nn_functions
from treeplay.torch_seam.schemas import leaves_of
from treeplay.torch_seam.symbols import has_symbols

_LOSSES = ("multi_margin_loss", "multilabel_margin_loss")
_WRITTEN_OUT = {"interpolate", *_LOSSES, "hardshrink", "softshrink", *(n for n in dir(nn_functions) if "upsample" in n)}


def kept_whole(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_exact: bool
) -> contextlib.AbstractContextManager[Any]:
    """For a call of the torch function of this name: its operators are traced as eager calls them, unless sizes are symbols."""
    is_whole = is_exact and name in _WRITTEN_OUT and not has_symbols(leaves_of((args, kwargs)))
    return as_eager() if is_whole else contextlib.nullcontext()
