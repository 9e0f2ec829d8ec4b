"""Errors that a program handles are noted while it runs as it is."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch

from treeplay.tree.handled import errors_noted


def handled() -> None:
    with contextlib.suppress(IndexError):
        torch.ones(2)[torch.tensor(5)]  # HERE


def test_an_error_on_values_is_noted_with_its_line() -> None:
    with errors_noted() as noted:
        getattr(torch, "there is no such name", None)
        assert not noted.is_any
        handled()
    assert noted.is_any and noted.where is not None and "HERE" in noted.where.source
    assert sys.gettrace() is None


def test_a_debugger_is_left_alone() -> None:
    def told(frame: Any, event: str, arg: Any) -> Any:
        return None

    before = sys.gettrace()
    sys.settrace(told)
    try:
        with errors_noted() as noted:
            handled()
            assert sys.gettrace() is told
        assert not noted.is_any
    finally:
        sys.settrace(before)


def test_a_tracer_that_the_program_installs_stays() -> None:
    def told(frame: Any, event: str, arg: Any) -> Any:
        return None

    before = sys.gettrace()
    try:
        with errors_noted():
            sys.settrace(told)
        assert sys.gettrace() is told
    finally:
        sys.settrace(before)
