"""Machinery: whose code is the program's."""

from __future__ import annotations

import torch

from treeplay.guards.reads.machinery import is_machinery
from treeplay.trace import jit as tracing


def test_our_own_files_are_machinery_and_a_users_are_not() -> None:
    assert is_machinery(tracing.__file__ or "") and is_machinery(torch._ops.__file__)
    assert not is_machinery(__file__) and not is_machinery(torch.nn.modules.linear.__file__)
