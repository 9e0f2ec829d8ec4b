"""Births as a capture would note them, without a capture."""

from __future__ import annotations

import torch


class NotedBirths:
    """Counts the operators that ran, as a capture counts nodes."""

    def __init__(self, rewritten: frozenset[int] = frozenset()) -> None:
        self.time = 0
        self.told: list[tuple[int, int]] = []
        self.begun = 0
        self.results_first = True
        self.rewritten = rewritten

    def begins(self) -> None:
        self.begun += 1

    def now(self) -> int:
        self.time += 1
        return self.time

    def born(self, tensor: torch.Tensor, at: int) -> None:
        self.told.append((tensor.untyped_storage().data_ptr(), at))
