"""`TREEPLAY_LOGS`: one line for each event, with the user's line."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import treeplay
from treeplay.observe import events
from treeplay.torch_compile import compile_graph


class Lines:
    """What was logged, as (kind, text)."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def of(self, kind: str) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if record.name == f"treeplay.{kind}"]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.INFO, "treeplay")
    return Lines(caplog)


def _line_of(function: Callable[..., Any], text: str) -> str:
    source, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(at for at, line in enumerate(source) if text in line)}"


def _twice(program: Callable[..., Any], *args: Any) -> None:
    for _ in range(2):
        program(*args)  # CALLED


def test_a_recording_is_one_line_with_the_call_that_made_it(lines: Lines) -> None:
    @treeplay.jit(lower="aten")
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 - 1

    for _ in range(3):
        _twice(program, torch.ones(2))
    (line,) = lines.of("recordings")
    assert line.startswith(f"{_line_of(_twice, 'CALLED')} in _twice: ") and "program" in line and "aten" in line
    assert "\n" not in line and lines.of("refusals") == lines.of("guards") == []


def test_a_refusal_is_one_line_with_the_line_that_is_refused(lines: Lines) -> None:
    @treeplay.jit(lower="aten")
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()  # READ

    with pytest.warns(UserWarning):
        _twice(program, torch.ones(2))
    (line,) = lines.of("refusals")
    here = _line_of(test_a_refusal_is_one_line_with_the_line_that_is_refused, "READ")
    assert line.startswith(f"{here} in program: ") and "item" in line and "fix: " in line and "\n" not in line


class _Scaled:
    factor = 2.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor - 1


def test_a_guard_that_does_not_hold_is_named(lines: Lines) -> None:
    scaled = _Scaled()
    program = treeplay.jit(scaled, lower="aten")
    _twice(program, torch.ones(2))
    scaled.factor = 3.0
    _twice(program, torch.ones(2))
    (line,) = lines.of("guards")
    assert line.startswith(_line_of(_twice, "CALLED")) and "factor" in line and len(lines.of("recordings")) == 2


def test_a_new_key_is_told_from_the_nearest(lines: Lines) -> None:
    program = treeplay.jit(lambda x: x * 2 - 1, lower="aten")
    _twice(program, torch.ones(2))
    _twice(program, torch.ones(3))
    (line,) = lines.of("guards")
    assert "(3,)" in line and "(2,)" in line


def test_what_is_dropped_is_told(lines: Lines) -> None:
    program = treeplay.jit(lambda x: x * 2 - 1, lower="aten")
    with treeplay.settings.changed(max_recordings_per_program=1), pytest.warns(UserWarning):
        _twice(program, torch.ones(2))
        _twice(program, torch.ones(3))
    assert any("dropped" in line for line in lines.of("recordings"))


def test_graphs_of_torch_compile_are_told(lines: Lines) -> None:
    gm = torch.fx.symbolic_trace(lambda x: (x * 2 - 1,))
    compile_graph(gm, [torch.ones(2)], options={"inner": "aten"})(torch.ones(2))
    (line,) = lines.of("recordings")
    assert "graph" in line and "compiled" in line


def test_nothing_is_made_of_an_event_that_nobody_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "own_location", None)
    _twice(treeplay.jit(lambda x: x * 2 - 1, lower="aten"), torch.ones(2))


@pytest.fixture
def _loggers_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(f"treeplay.{kind}") for kind in ("recordings", "refusals", "guards")]
    before = [(logger.level, [*logger.handlers], logger.propagate) for logger in loggers]
    yield
    for logger, (level, handlers, propagates) in zip(loggers, before, strict=True):
        logger.level, logger.handlers, logger.propagate = level, handlers, propagates


@pytest.mark.usefixtures("_loggers_as_before")
def test_the_environment_asks_for_lines_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TREEPLAY_LOGS", "recordings, refusals")
    events.print_what_the_environment_asks_for()
    program = treeplay.jit(lambda x: x * 2 - 1, lower="aten")
    _twice(program, torch.ones(2))
    _twice(program, torch.ones(3))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"treeplay.recordings {__file__}:") and second.startswith("treeplay.recordings ")


def test_an_unknown_word_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREEPLAY_LOGS", "guards,recording")
    with pytest.raises(treeplay.ArgumentError, match=r"expected some of recordings, .*found 'recording'"):
        events.print_what_the_environment_asks_for()
