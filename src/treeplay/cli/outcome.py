"""What a command ends with: an exit code, and after an error one message on stderr, without a traceback.

0   done, or yes
1   the answer is no: the demo's runs disagree, a program cannot be recorded
2   the command cannot do what it was asked: a wrong name, a missing package, a program that raises by itself
3   an error inside treeplay: please report it
"""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from treeplay.errors import ArgumentError, ArgumentTypeError, Refusal, TreeplayError

NO = 1
CANNOT = 2
INTERNAL = 3


class CommandError(TreeplayError, RuntimeError):
    """A command cannot do what it was asked (the caller's to fix)."""


class ErrorsToStderr(TyperGroup):
    """The only place where errors turn into text and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen verb."""
        try:
            return super().invoke(ctx)
        except TreeplayError as error:
            say_error(str(error))
            raise typer.Exit(exit_code(error)) from None


def exit_code(error: TreeplayError) -> int:
    """The code a command ends with after `error`."""
    if isinstance(error, Refusal):
        return NO
    return CANNOT if isinstance(error, (ArgumentError, ArgumentTypeError, CommandError)) else INTERNAL


def say_error(message: str) -> None:
    """One message on stderr, its lines as they are."""
    Console(stderr=True).print(Text("error: ", style="bold red") + Text(message), soft_wrap=True)
