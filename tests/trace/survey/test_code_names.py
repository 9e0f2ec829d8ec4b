"""The names in a function's code."""

from __future__ import annotations

from typing import Any

from torch import nn

from treeplay.trace.survey.code_names import methods_used, names_in, stores_in, strings_in, values_in


def program(x: Any, opt: Any, table: Any) -> Any:
    global COUNT
    COUNT = scale(x)  # type: ignore[name-defined]  # noqa: F821
    opt.step()
    opt.rate = table["key"]
    return lambda: inner.attribute  # type: ignore[name-defined]  # noqa: F821


def test_all_names_include_methods_and_inner_functions() -> None:
    assert {"COUNT", "scale", "step", "rate", "inner", "attribute"} <= names_in(program.__code__)


def test_a_method_call_reads_no_value_of_that_name() -> None:
    values = values_in(program.__code__)
    assert {"scale", "inner", "attribute", "rate"} <= values and "step" not in values


def test_stores_are_what_is_assigned_or_deleted() -> None:
    assert {"COUNT", "rate"} <= stores_in(program.__code__) and "scale" not in stores_in(program.__code__)


def test_strings_are_the_keys_a_function_may_look_up() -> None:
    assert "key" in strings_in(program.__code__)


class Base:
    def shared(self) -> Any:
        return self.value  # type: ignore[attr-defined]


class Derived(Base):
    def run(self) -> Any:
        return self.shared() + self.prop

    @property
    def prop(self) -> int:
        return 1

    def unrelated(self) -> None: ...


def test_methods_used_follow_calls_properties_and_bases() -> None:
    assert {method.__name__ for method in methods_used(Derived, "run")} == {"run", "shared", "prop"}


def test_what_every_module_inherits_says_nothing() -> None:
    assert [method.__name__ for method in methods_used(nn.Linear, "forward")] == ["forward"]
