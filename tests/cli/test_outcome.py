"""Errors become one message on stderr and an exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import treeplay
from treeplay.cli import make_app
from treeplay.cli.outcome import CommandError
from treeplay.errors import ArgumentError, ArgumentTypeError, InternalError, LoweringError, Refusal, TreeplayError
from treeplay.values.refusal import Reason

Command = Callable[..., Any]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refusal(Reason("item", "reads", "do not")), 1),
        (ArgumentError("bad"), 2),
        (ArgumentTypeError("bad"), 2),
        (CommandError("bad"), 2),
        (LoweringError("bad"), 3),
        (InternalError("bad"), 3),
        (TreeplayError("bad"), 3),
    ],
)
def test_each_error_has_its_exit_code(error: TreeplayError, code: int) -> None:
    app = make_app()

    @app.command()
    def fails() -> None:
        raise error

    result = CliRunner().invoke(app, ["fails"])
    assert result.exit_code == code
    assert result.stderr.startswith(f"error: {error}")
    assert result.stdout == ""


def test_text_in_brackets_is_no_markup() -> None:
    app = make_app()

    @app.command()
    def fails() -> None:
        raise CommandError("args[0] [bold]is[/bold] wrong")

    assert "args[0] [bold]is[/bold] wrong" in CliRunner().invoke(app, ["fails"]).stderr


def test_a_foreign_exception_is_not_hidden() -> None:
    app = make_app()

    @app.command()
    def fails() -> None:
        raise ZeroDivisionError

    assert isinstance(CliRunner().invoke(app, ["fails"]).exception, ZeroDivisionError)


def test_the_version_can_be_asked_for(command: Command) -> None:
    assert command("--version").stdout == f"treeplay {treeplay.__version__}\n"


def test_help_lists_the_verbs(command: Command) -> None:
    text = command("--help").stdout
    assert all(verb in text for verb in ("demo", "doctor", "check"))
    assert isinstance(make_app(), typer.Typer)
