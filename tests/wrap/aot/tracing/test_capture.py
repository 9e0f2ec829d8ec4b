"""A function traced with its backward: what is around the trace is afterwards as before."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch

from treeplay.wrap.aot.tracing.capture import captured

_FOR_DYNAMO = "_is_in_any_mode_without_ignore_compile_internals"


def flags() -> dict[str, Any]:
    return {name: value for name, value in vars(dispatch).items() if name.startswith("_is_in_") and type(value) is bool}


def test_the_flags_of_modes_are_as_before_in_the_block_and_after_it() -> None:
    before = flags()  # of the process: traces of two threads at once may have left one of them on
    assert not before[_FOR_DYNAMO]
    x = torch.ones(3, requires_grad=True)
    with captured(lambda x: [x.sin() * 2 - 1], [x], None) as (traced, _):
        assert traced.is_joint and not flags()[_FOR_DYNAMO]
    assert flags() == before
