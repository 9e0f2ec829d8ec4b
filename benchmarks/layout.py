"""A table of results, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

Row = Sequence[str]


def for_terminal(head: Row, rows: Iterable[Row], *, title: str = "µs per call") -> Table:
    """The table with the first column, which names the program, to the left and never wrapped."""
    table = Table(title=title)
    for index, name in enumerate(head):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=index == 0)
    for row in rows:
        table.add_row(*row)
    return table


def for_readme(head: Row, rows: Iterable[Row], notes: Iterable[str]) -> str:
    """The table in Markdown, and its notes below."""
    lines = [head, ("---", *["---:"] * (len(head) - 1)), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{' '.join(notes)}"


def uncommitted(version: str) -> str:
    """What a version says of changes that are in no commit."""
    return " (with changes that are in no commit)" if version.endswith("-dirty") else ""
