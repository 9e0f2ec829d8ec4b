"""Undoing what was done, completely, although a part of it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any


def each(items: Iterable[tuple[Any, ...]], undo: Callable[..., object]) -> None:
    """Call `undo` with each of these, whatever it raises for others; raises the first error when all are done."""
    steps = Teardown()
    for item in reversed([*items]):
        steps.add("undoing another", partial(undo, *item))
    steps.finish()


class Teardown:
    """Steps that undo something, the last one added first. Each is attempted, whatever the others do."""

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], object]]] = []

    def add(self, doing: str, step: Callable[[], object]) -> None:
        """Note a step; `doing` says in a later error what it does ("restoring the stream")."""
        self._steps.append((doing, step))

    def run(self, first: BaseException | None = None) -> BaseException | None:
        """Attempt every step once. Returns the first error, `first` if given; later ones are its notes."""
        while self._steps:
            doing, step = self._steps.pop()
            try:
                step()
            except BaseException as error:
                if first is None:
                    first = error
                else:
                    first.add_note(f"then, while {doing}: {type(error).__name__}: {error}")
        return first

    def finish(self, first: BaseException | None = None) -> None:
        """Attempt every step once, and raise the first error, `first` if given."""
        error = self.run(first)
        if error is not None:
            raise error
