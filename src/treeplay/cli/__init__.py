"""The command `treeplay`: one module per verb; errors become one message on stderr and an exit code.

demo     train a small network eagerly and replayed, and compare
doctor   what is installed, and how programs will be lowered here
check    can this program be recorded, and if not, which line is in the way

A verb's module, and torch with it, is imported when the verb is called: the version and the list of verbs are there at once.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

import treeplay
from treeplay.cli.outcome import ErrorsToStderr

VERBS = {
    "demo": "Train a small network on handwritten digits, eagerly and replayed, and compare.",
    "doctor": "Say what is installed, and how programs will be lowered on this machine.",
    "check": "Say whether a program can be recorded, and if not, which line is in the way.",
}
"""Each verb with the first line of what it says of itself."""


class Verbs(ErrorsToStderr):
    """Knows the verbs by name; what one of them takes, once it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that `args` begin with."""
        if args and args[0] in VERBS:
            _ = treeplay.settings.enabled  # an error, if the environment says what it cannot: before torch is imported
            self.commands[args[0]] = _command(args[0])
        return super().resolve_command(ctx, args)


def _command(name: str) -> Any:
    verb: Callable[..., None] = getattr(importlib.import_module(f"treeplay.cli.{name}"), name)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(verb)
    return typer.main.get_command(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"treeplay {treeplay.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Record what a PyTorch program does once, and replay it for the price of one launch."""
    # An error, if the environment names events that there are none of.
    importlib.import_module("treeplay.observe.events")


def make_app() -> typer.Typer:
    """The command with all its verbs."""
    app = typer.Typer(cls=Verbs, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_root)
    for name, told in VERBS.items():
        # Only for the list of verbs: `resolve_command` puts the verb itself in its place.
        app.command(name, help=told)(lambda: None)
    return app


def main() -> None:
    """The entry point of the command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a terminal may lack a letter of the user's line
    make_app()(prog_name="treeplay")
