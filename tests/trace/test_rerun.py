"""Substitution: torch functions get other tensors, the program keeps its own in its hands."""

from __future__ import annotations

import threading

import torch
from torch import nn

from treeplay.trace.rerun import Substitution


def test_what_is_computed_is_computed_with_the_others() -> None:
    own, other = nn.Parameter(torch.ones(2, 3)), torch.full((2, 3), 5.0, requires_grad=True)
    substitution = Substitution()
    substitution.set([own], [other])
    with substitution.mode():
        results = [own * 2, torch.cat([own, own]), own.T, own.data, torch.stack((own,)), own[0], torch.sum(input=own)]
        total = sum(result.sum() for result in results if result.requires_grad)
        assert not results[3].requires_grad
    assert [float(result.max()) for result in results] == [10, 5, 5, 5, 5, 5, 30]
    total.backward()
    assert own.grad is None and other.grad is not None


def test_what_is_asked_is_asked_of_the_programs_own() -> None:
    own, other = nn.Parameter(torch.ones(2)), torch.ones(2)
    own.grad = torch.full((2,), 3.0)
    substitution = Substitution()
    substitution.set([own], [other])
    with substitution.mode():
        assert own.grad is not None and own.grad.tolist() == [3, 3]
        assert own.is_leaf and own.requires_grad and own in {own}


def test_a_write_gives_back_the_programs_own() -> None:
    own, other = torch.ones(2), torch.full((2,), 4.0)
    substitution = Substitution()
    substitution.set([own], [other])
    with substitution.mode():
        assert own.add_(1) is own
    assert own.tolist() == [1, 1] and other.tolist() == [5, 5]


def test_other_threads_compute_with_their_own() -> None:
    own, other, seen = torch.ones(2), torch.full((2,), 4.0), []
    substitution = Substitution()
    substitution.set([own], [other])
    with substitution.mode():
        thread = threading.Thread(target=lambda: seen.append(own * 2))
        thread.start()
        thread.join()
    assert seen[0].tolist() == [2, 2]
