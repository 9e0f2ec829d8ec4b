"""Machinery: whose code is the program's."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from treeplay.guards.reads.machinery import is_machinery, is_of_a_trace
from treeplay.trace import jit as tracing
from treeplay.values.place import Place
from treeplay.values.spec import TensorSpec


@dataclass(frozen=True)
class Record:
    number: int


def test_our_own_files_are_machinery_and_a_users_are_not() -> None:
    assert is_machinery(tracing.__file__ or "") and is_machinery(torch._ops.__file__)
    assert not is_machinery(__file__) and not is_machinery(torch.nn.modules.linear.__file__)


def test_methods_that_are_made_of_text_are_machinery_in_our_own_classes_only() -> None:
    assert is_of_a_trace(Place.__init__.__code__) and is_of_a_trace(TensorSpec.__eq__.__code__)
    assert not is_of_a_trace(Record.__init__.__code__) and not is_of_a_trace(Record.__eq__.__code__)
