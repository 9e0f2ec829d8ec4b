"""The command, called in this process; one thread, so that a busy machine does not slow small tensors down."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from treeplay.cli import make_app

Command = Callable[..., Result]
WriteProgram = Callable[[str], str]


@pytest.fixture
def command() -> Command:
    """Call the command with words; its result has `exit_code`, `stdout` and `stderr`."""
    return lambda *words: CliRunner().invoke(make_app(), [str(word) for word in words])


@pytest.fixture
def write_program(tmp_path: Path) -> WriteProgram:
    """Write a Python file and get its path."""

    def write(text: str) -> str:
        path = tmp_path / "programs_of_a_user.py"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _imports_as_before() -> Iterator[None]:
    """`check` imports the user's file as Python would run it; tests take it back."""
    path, modules, words = list(sys.path), set(sys.modules), sys.argv
    yield
    sys.path[:], sys.argv = path, words
    for name in set(sys.modules) - modules:
        if name.startswith("programs_of_a_user"):
            del sys.modules[name]
