"""The first run of a program, which is watched: it does what it would do with nobody watching."""

from __future__ import annotations

from typing import Any

import torch

from treeplay.trace.observe import _unwatched

aten: Any = torch.ops.aten


def test_lengths_on_the_cpu_beside_losses_elsewhere_are_numbers() -> None:
    losses, targets = torch.empty(9, 2, 6, device="meta"), torch.empty(2, 3, device="meta")
    lengths, others = torch.tensor([9, 8]), torch.tensor([3, 2])
    func, args = _unwatched(aten._ctc_loss.Tensor, (losses, targets, lengths, others, 0, False))
    assert func is aten._ctc_loss.default and args == (losses, targets, [9, 8], [3, 2], 0, False)
    given = (losses, losses, targets, lengths, others, losses, losses, 0)
    func, args = _unwatched(aten._ctc_loss_backward.Tensor, given)
    assert func is aten._ctc_loss_backward.default and args[3:5] == ([9, 8], [3, 2]) and len(args) == len(given)


def test_lengths_beside_losses_stay_tensors() -> None:
    args = (torch.zeros(9, 2, 6), torch.ones(2, 3), torch.tensor([9, 8]), torch.tensor([3, 2]))
    assert _unwatched(aten._ctc_loss.Tensor, args) == (aten._ctc_loss.Tensor, args)
