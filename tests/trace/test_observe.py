"""The first run of a program, which is watched: it does what it would do with nobody watching."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from support import call_of
from treeplay.trace import observe as module
from treeplay.trace.observe import observe


def test_lengths_on_the_cpu_beside_losses_elsewhere_are_read_as_numbers() -> None:
    given: list[Any] = []

    def ctc_loss(losses: Any, targets: Any, *lengths: Any) -> Any:
        given.extend(lengths)

    asked = module._lengths_as_numbers(ctc_loss, lambda: True)
    losses, lengths = torch.empty(9, 2, 6, device="meta"), torch.tensor([9, 8])
    asked(losses, losses, lengths, lengths - 5)
    assert given == [[9, 8], [4, 3]]
    given.clear()
    asked(torch.empty(9, 2, 6), losses, lengths, lengths)
    assert given[0] is lengths and given[1] is lengths


def test_ctc_loss_is_torchs_own_again_after_the_run() -> None:
    before = torch.ctc_loss

    def program(x: torch.Tensor) -> torch.Tensor:
        assert torch.ctc_loss is not before
        lengths = torch.tensor([3])
        return F.ctc_loss(x, torch.ones(1, 1, dtype=torch.int64), lengths, lengths - 2)

    x = torch.randn(3, 1, 2).log_softmax(-1)
    found, _ = observe(program, call_of(x))
    assert torch.equal(found, F.ctc_loss(x, torch.ones(1, 1, dtype=torch.int64), torch.tensor([3]), torch.tensor([1])))
    assert torch.ctc_loss is before
