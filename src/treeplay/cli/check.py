"""`treeplay check`: can this program be recorded? Nothing is compiled and nothing is recorded.

target ─▶ `treeplay.check` ─▶ summary | refusals
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from treeplay.cli.outcome import NO
from treeplay.cli.target import Target, find_target, with_user_errors
from treeplay.report.check import CheckOutcome
from treeplay.report.check import examine as look
from treeplay.trace.call import call_of
from treeplay.trace.traced import Trace
from treeplay.tree.keys.key import label_of
from treeplay.values.plan import Plan
from treeplay.values.refusal import Reason
from treeplay.values.signature import Argument, Input, Signature, State

_MOST_SHOWN = 6


def check(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The program: FILE.py:NAME or module:NAME.")],
    args: Annotated[
        str | None,
        typer.Option(
            "--args",
            metavar="EXPR",
            help="Example arguments, as Python evaluated in the program's file: a tuple, or one value. "
            "Without it the file's NAME_args() or example_args() is called, else the program takes none.",
        ),
    ] = None,
    no_grad: Annotated[bool, typer.Option("--no-grad", help="Call the program under torch.no_grad().")] = False,
) -> None:
    """Say whether a program can be recorded, and if not, which line is in the way.

    The program runs once eagerly, with all its effects, and is then traced on tensors without data. Nothing is compiled.
    """
    found = find_target(target, args)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not no_grad):
        answer = examine_target(found)
    console = Console()
    console.print(f"{target} with {label_of(answer.call)} ({found.source_of_args})", **_PLAIN)
    if answer.traced is None or answer.plan is None:
        _print_refusals(console, answer.reasons)
        raise typer.Exit(NO)
    console.print(Text("can be recorded", style="bold green"))
    console.print(summary_table(answer.traced, answer.plan, answer.backward))
    for effect in answer.traced.effects:
        console.print(str(effect), **_PLAIN)


_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


def examine_target(target: Target) -> CheckOutcome:
    """Take `target` through the stages up to the plan. Raises `CommandError` if the program itself raises."""
    return look(
        target.program,
        call_of(target.args, {}, takes_arrays=True),
        lambda run: with_user_errors(f"{target.name}, run eagerly,", run),
    )


def _print_refusals(console: Console, reasons: Sequence[Reason]) -> None:
    console.print(Text("cannot be recorded", style="bold red"))
    for reason in reasons:
        console.print(str(reason), **_PLAIN)
    console.print("These are all that the trace came to; behind the last one there may be more.", style="dim")


def summary_table(traced: Trace, plan: Plan, backward: str | None) -> Table:
    """What the recording would take, write and give."""
    signature = traced.signature
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    rows = [
        ("kind", signature.kind.value),
        ("lowering", str(plan)),
        ("operators", str(sum(node.op == "call_function" for node in traced.graph.nodes))),
        ("tensors in", _tensors_in(signature)),
        ("numbers in", _listed([f"{item.place} = {item.value:g}" for item in signature.numbers])),
        ("written in place", _listed([_name(signature.inputs[index]) for index in signature.mutated])),
        ("slots", _listed([str(write.place) for write in signature.writes])),
        ("tensors out", str(signature.outputs)),
        *([("backward", backward)] if backward is not None else []),
    ]
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _tensors_in(signature: Signature) -> str:
    sources = [type(item.source) for item in signature.inputs]
    arguments, state = sources.count(Argument), sources.count(State)
    constants = len(sources) - arguments - state
    return f"{len(sources)}: arguments {arguments}, state {state}, constants {constants}"


def _name(item: Input) -> str:
    return str(item.source.place) if isinstance(item.source, State) else item.name


def _listed(names: list[str]) -> str:
    """How many, and the first few by name."""
    if not names:
        return "none"
    rest = len(names) - _MOST_SHOWN
    return f"{len(names)}: {', '.join(names[:_MOST_SHOWN])}" + (f" and {rest} more" if rest > 0 else "")
