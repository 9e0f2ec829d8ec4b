"""What a program prints, logs and writes is told once, with its lines: no replay does it."""

from __future__ import annotations

import csv
import inspect
import io
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import treeplay
from support.installed import FILE, library

_log = logging.getLogger("of_a_user")
_log.addHandler(logging.StreamHandler(io.StringIO()))
_files: list[Any] = []


def prints(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    print("a step", tuple(y.shape))  # HERE
    return y - 1


def prints_deep_inside(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        print("inner")  # HERE
        return y - 1

    return inner(x * 2)


def logs(x: torch.Tensor) -> torch.Tensor:
    _log.debug("nobody wants to know")
    y = x * 2
    _log.warning("a step of %s", tuple(y.shape))  # HERE
    return y - 1


def logs_by_level(x: torch.Tensor) -> torch.Tensor:
    _log.log(logging.ERROR, "a step")  # HERE
    return x * 2 - 1


def writes(x: torch.Tensor) -> torch.Tensor:
    _files[0].write("a step\n")  # HERE
    return x * 2 - 1


def writes_rows(x: torch.Tensor) -> torch.Tensor:
    csv.writer(_files[0]).writerow([1, 2])  # HERE
    return x * 2 - 1


def dumps(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    json.dump({"shape": list(y.shape)}, _files[0])  # HERE
    return y - 1


def opens(x: torch.Tensor) -> torch.Tensor:
    with open(_files[0].name, "a") as file:
        file.write("a step")  # HERE
    return x * 2 - 1


def differentiable(x: torch.Tensor) -> torch.Tensor:
    print("a step")  # HERE
    return x * 2 - 1


def warned_of(program: Callable[..., Any], x: torch.Tensor, *, most: int = 4) -> list[str]:
    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    # pytest's handlers change state of theirs, which is refused
    with patch.object(logging.getLogger(), "handlers", []), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(most):
            jitted(x)
    assert jitted.statistics().replays == most - 1
    return [str(warning.message) for warning in caught if str(warning.message).startswith("treeplay")]


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (prints, "print"),
        (prints_deep_inside, "print"),
        (logs, "logging"),
        (logs_by_level, "logging"),
        (writes, "write"),
        (writes_rows, "write"),
        (dumps, "write"),
        (opens, "write"),
        (differentiable, "print"),
    ],
)
def test_an_effect_is_told_once_with_its_line(program: Callable[..., Any], what: str, tmp_path: Path) -> None:
    lines, first = inspect.getsourcelines(program)
    line = first + next(at for at, text in enumerate(lines) if "# HERE" in text)
    with open(tmp_path / "log.txt", "w") as file:
        _files[:] = [file]
        (told,) = warned_of(program, torch.ones(2, requires_grad=program is differentiable))
    name = "inner" if program is prints_deep_inside else program.__name__
    assert f"{what}: " in told and told.count("  at  ") == 1 and f"  at      {__file__}:{line} in {name}\n" in told


def test_an_effect_of_text_that_was_run_is_told() -> None:
    scope: dict[str, Any] = {}
    exec("def talk(x):\n    print('from text')\n    return x - 1\n", scope)
    (told,) = warned_of(scope["talk"], torch.ones(2))
    assert "print: " in told and "  at      <string>:2 in talk" in told


def computes(x: torch.Tensor) -> torch.Tensor:
    buffer = io.StringIO()
    buffer.write("stays in memory")
    _log.debug("nobody wants to know")
    if x.dim() > 5:
        print("never")
    return x * len(buffer.getvalue()) - 1


def test_what_only_computes_is_told_nothing() -> None:
    assert warned_of(computes, torch.ones(2)) == []


def test_a_program_that_is_refused_is_told_the_refusal_alone() -> None:
    @treeplay.jit(lower="aten")
    def program(x: torch.Tensor) -> torch.Tensor:
        print("still printed")
        return x * x.sum().item()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            program(torch.ones(2))
    assert len(caught) == 1 and "replays" not in str(caught[0].message)


def test_a_library_that_prints_is_named_where_no_line_of_the_users_does() -> None:
    scope = library("def talk(x):\n    print('from a library')\n    return x - 1\n")
    (told,) = warned_of(lambda x: scope["talk"](x * 2), torch.ones(2))
    assert f"  at      {FILE}:2 in talk" in told


def test_a_program_whose_warnings_are_shown_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def show(message: Any, category: type[Warning], file: str, line: int, *_: Any) -> None:
        shown.append(warnings.formatwarning(message, category, file, line))  # reads the line, and keeps the file's

    @treeplay.jit(lower="aten", on_refusal="raise")
    def step(x: torch.Tensor) -> torch.Tensor:
        warnings.warn("of the program", stacklevel=1)
        return x * 2 - 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        for _ in range(4):
            step(torch.ones(2))
    assert shown and step.statistics().recordings == 1
