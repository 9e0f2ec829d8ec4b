"""The functions that code belongs to: found by the name of the code, or not at all."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from treeplay.guards.reads.functions import function_with_code


class Named:
    @staticmethod
    def plainly() -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    @property
    def asked(self) -> float:
        return 1.0

    class Inner:
        def method(self) -> None: ...


def test_the_function_of_code_is_found_by_its_name() -> None:
    getter = vars(Named)["asked"].fget
    for function in (Named.plainly, Named.of_class.__func__, getter, Named.Inner.method, functools.wraps):  # type: ignore[attr-defined]
        assert function_with_code(function.__code__) is function


def test_no_other_function_is_found_for_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def nested() -> None: ...

    plainly = Named.plainly
    monkeypatch.setattr(Named, "plainly", staticmethod(lambda: None))
    made: dict[str, Any] = {}
    exec("def of_text(): ...", made)
    assert [function_with_code(function.__code__) for function in (nested, plainly, made["of_text"])] == [None] * 3
