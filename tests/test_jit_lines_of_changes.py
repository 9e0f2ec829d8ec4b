"""A refusal for what a program changes names the line that changes it."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch

import treeplay
from treeplay.errors import Refusal

counts = {"calls": 0}


class Player:
    def __init__(self) -> None:
        self.frames: Any = deque([torch.zeros(2)] * 3)
        self.seen: list[torch.Tensor] = []
        self.best: Any = None
        self.scores: dict[str, Any] = {"all": []}
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.step = 0

    def stacks(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        self.frames.append(y)  # here
        return torch.stack(list(self.frames)).sum(0) - x

    def keeps(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        for one in (y, y - 1):
            self.seen.append(one)  # here
        return y - len(self.seen)

    def notes(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        self._note(y)
        return y - 1

    def _note(self, y: torch.Tensor) -> None:
        scores = self.scores
        scores["all"] = [*scores["all"], y.shape]  # here

    def marks(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2 - self.weight.detach()
        self.weight.calls = object()  # here
        return y

    def makes(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        self.best = object()  # here
        return y - 1

    def hands_on(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        add_to(self.seen, y)  # here
        return y - len(self.seen)

    def lets_go(self, x: torch.Tensor) -> torch.Tensor:
        self.scores["last"] = x * 2
        y = self.scores["last"] - 1
        self.scores = {"all": []}  # here
        return y

    def lets_a_list_go(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x * 2)
        y = self.seen[-1] - 1
        self.seen = []  # here
        return y

    def empties(self, x: torch.Tensor) -> torch.Tensor:
        self.scores["last"] = x * 2
        y = self.scores["last"] - 1
        self.scores.clear()
        return y


def add_to(somewhere: list[torch.Tensor], y: torch.Tensor) -> None:
    somewhere += [y]


def counts_in_a_global(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    counts["calls"] = object()  # type: ignore[assignment]  # here
    return y - 1


def _line_of(program: Any) -> tuple[int, str]:
    """Where treeplay says that the program changes something."""
    step = treeplay.jit(program, lower="aten", on_refusal="raise")
    with pytest.raises(Refusal) as raised:
        for k in range(6):
            step(torch.tensor([k, 3.0]))
    where = raised.value.where
    assert where is not None
    return where.line, where.source


@pytest.mark.parametrize(
    "name", ["stacks", "keeps", "notes", "marks", "makes", "hands_on", "lets_go", "lets_a_list_go"]
)
def test_the_line_of_a_method_that_changes_state(name: str) -> None:
    _, source = _line_of(getattr(Player(), name))
    assert source.endswith("# here")


def test_the_line_that_changes_a_global() -> None:
    _, source = _line_of(counts_in_a_global)
    assert source.endswith("# here")


def test_what_cannot_be_stored_is_told_by_its_place() -> None:
    player = Player()
    step = treeplay.jit(player.makes, lower="aten", on_refusal="raise")
    with pytest.raises(Refusal, match=r"self\.best"):
        for k in range(6):
            step(torch.tensor([k, 3.0]))


def test_a_cache_that_is_replaced_once_it_is_used_is_to_be_emptied() -> None:
    player = Player()
    step = treeplay.jit(player.lets_go, lower="aten", on_refusal="raise")
    with pytest.raises(Refusal, match=r"self\.scores: the program changes what is in this place.*\n(.*\n)*.*clear\(\)"):
        for k in range(6):
            step(torch.tensor([k, 3.0]))
    player.scores.clear()
    step = treeplay.jit(player.empties, lower="aten", on_refusal="raise")
    for k in range(4):
        assert step(torch.tensor([k, 3.0])).tolist() == [2 * k - 1, 5] and not player.scores
    assert step.statistics().replays == 3


def test_a_refusal_of_the_whole_program_names_where_it_begins() -> None:
    numbers = iter(range(9))

    def takes(x: torch.Tensor) -> torch.Tensor:
        return x * 2 - next(numbers)

    line, _ = _line_of(takes)
    assert line == takes.__code__.co_firstlineno


def replaces_a_method(x: torch.Tensor) -> torch.Tensor:
    Replaced.by = lambda self: 3 if self is None else 2  # here
    return x * Replaced().by() - 1


class Replaced:
    def by(self) -> int:
        return 2


def test_the_line_that_replaces_a_method() -> None:
    _, source = _line_of(replaces_a_method)
    assert source.endswith("# here")
