"""Switched off, everything is the plain program: nothing is recorded, traced, compiled or imported for it."""

from __future__ import annotations

import pytest
import torch

import treeplay
from support.interpreters import FreshPython
from treeplay.settings import Settings, settings


@pytest.fixture(autouse=True)
def _off() -> object:
    with settings.changed(enabled=False):
        yield


def test_a_jitted_program_is_the_plain_one_until_it_is_switched_on() -> None:
    ran = []

    @treeplay.jit(lower="aten", on_refusal="raise")
    def program(x: torch.Tensor) -> torch.Tensor:
        ran.append(len(ran))
        return x * 2 - 1

    for _ in range(4):
        assert program(torch.ones(3)).tolist() == [1, 1, 1]
    assert len(ran) == 4 and program.statistics().calls == 0 and program.sources() == []
    assert "switched off" in program.explain()
    program.reset()


def test_recordings_are_there_again_when_it_is_switched_on() -> None:
    program = treeplay.jit(lambda x: x * 3 - 1, lower="aten", on_refusal="raise")
    with settings.changed(enabled=True):
        for _ in range(3):
            program(torch.ones(2))
    assert program(torch.ones(2)).tolist() == [2, 2]
    assert program.statistics().calls == 3
    with settings.changed(enabled=True):
        program(torch.ones(2))
    assert program.statistics().replays == 3 and "switched off" in program.explain()


def test_a_jitted_module_is_the_plain_one() -> None:
    module = torch.nn.Linear(2, 2)
    module.register_forward_hook(lambda *_: calls.append(1))
    calls: list[int] = []
    jitted = treeplay.jit(module, lower="aten")
    x = torch.ones(1, 2)
    for _ in range(3):
        assert torch.equal(jitted(x), module(x))
    assert len(calls) == 6 and jitted.statistics().calls == 0


def test_methods_are_plain() -> None:
    class Counter:
        count = 0

        @treeplay.jit
        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x - self.count

    counter = Counter()
    assert [counter.step(torch.ones(())).item() for _ in range(3)] == [0, -1, -2]


def test_the_backend_runs_graphs_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeplay.driver.compile_captured", None)
    program = torch.compile(lambda x: x * 2 - 1, backend="treeplay", options={"inner": "aten"})
    assert program(torch.ones(2)).tolist() == [1, 1]
    torch._dynamo.reset()


def test_graphed_callables_are_the_callables() -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)
    x = torch.ones(1, 2)
    assert treeplay.graphs.make_graphed_callables(first, (x,)) is first
    assert treeplay.graphs.make_graphed_callables((first, second), ((x,), (x,))) == (first, second)


def test_what_is_asked_for_by_name_is_done_all_the_same() -> None:
    assert len(treeplay.explain(lambda x: x * 2 - 1, torch.ones(2), options={"inner": "aten"}).graphs) == 1
    assert not settings.enabled


_IN_THE_ENVIRONMENT = """
import sys, torch
before = set(sys.modules)
import treeplay
program = treeplay.jit(lambda x: x * 2 - 1)
module = treeplay.jit(torch.nn.Linear(2, 2))
print(program(torch.ones(2)).tolist(), tuple(module(torch.ones(1, 2)).shape))
print(*sorted(name for name in set(sys.modules) - before if name.split(".")[0] in ("torch", "treeplay")))
"""


def test_the_environment_switches_it_off_and_nothing_is_imported(fresh_python: FreshPython) -> None:
    results, imported = fresh_python(_IN_THE_ENVIRONMENT, TREEPLAY="0")[0].splitlines()
    assert results == "[1.0, 1.0] (1, 2)"
    assert not [name for name in imported.split() if name.startswith(("torch", "treeplay.tree", "treeplay.lower"))]


@pytest.mark.parametrize(("value", "is_on"), [("0", False), ("off", False), ("False", False), ("1", True), ("", True)])
def test_what_the_environment_may_say(monkeypatch: pytest.MonkeyPatch, value: str, is_on: bool) -> None:
    monkeypatch.setenv("TREEPLAY", value)
    assert Settings().enabled is is_on


def test_an_unknown_word_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREEPLAY", "O")
    with pytest.raises(treeplay.ArgumentError, match="TREEPLAY: expected 0 or 1, found 'O'"):
        _ = Settings().enabled
