"""Errors are told of as they are raised, also those that are handled."""

from __future__ import annotations

import contextlib
import sys
from types import CodeType

from treeplay.sandbox.errors_told import errors_told


def raising() -> None:
    raise KeyError("one")


def handling() -> None:
    with contextlib.suppress(KeyError):
        raising()


def test_an_error_is_told_of_in_each_function_that_it_comes_through() -> None:
    told: list[str] = []
    with errors_told(lambda error, trace: told.append(trace.tb_frame.f_code.co_name)):
        handling()
    assert told == ["raising", "handling"] and sys.gettrace() is None


def test_only_in_code_that_is_asked() -> None:
    told: list[str] = []

    def is_asked(code: CodeType) -> bool:
        return code is handling.__code__

    with errors_told(lambda error, _: told.append(str(error)), is_asked):
        handling()
    assert told == ["'one'"]
