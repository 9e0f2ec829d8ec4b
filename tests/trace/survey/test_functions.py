"""The methods that a method can call."""

from __future__ import annotations

from typing import Any

from torch import nn

from treeplay.trace.survey.functions import methods_used


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
