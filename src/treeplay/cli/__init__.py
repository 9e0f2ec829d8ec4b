"""The command `treeplay`: one module per verb; errors become one message on stderr and an exit code.

demo     train a small network eagerly and replayed, and compare
doctor   what is installed, and how programs will be lowered here
check    can this program be recorded, and if not, which line is in the way
"""

from __future__ import annotations

from typing import Annotated

import typer

import treeplay
from treeplay.cli.check import check
from treeplay.cli.demo import demo
from treeplay.cli.doctor import doctor
from treeplay.cli.outcome import ErrorsToStderr


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


def make_app() -> typer.Typer:
    """The command with all its verbs."""
    app = typer.Typer(cls=ErrorsToStderr, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_root)
    for verb in (demo, doctor, check):
        app.command(verb.__name__)(verb)
    return app


def main() -> None:
    """The entry point of the command."""
    make_app()(prog_name="treeplay")
