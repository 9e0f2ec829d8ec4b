"""Which checkpoints are around what runs, and what they put back, by the functions that torch has on its stack of hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from treeplay.torch_seam.autograd import all_saving_hooks, saving_hooks
from treeplay.torch_seam.checkpoints import checkpoints_around, is_drawn_anew


def found_in(ask: Callable[[], Any], **options: Any) -> list[Any]:
    """What `ask` tells in a checkpoint, in its forward and in its backward."""
    found = []

    def part(x: torch.Tensor) -> torch.Tensor:
        found.append(ask())
        return x.sin().exp()

    checkpoint(part, torch.ones(2, requires_grad=True), use_reentrant=False, **options).sum().backward()
    return found


def test_outside_of_a_checkpoint_nothing_is_computed_again() -> None:
    assert not checkpoints_around()
    with save_on_cpu():
        assert not checkpoints_around()
    with torch.no_grad():
        assert not checkpoint(checkpoints_around, use_reentrant=False)


def test_a_checkpoint_is_found_below_other_hooks_which_stay_as_they_were() -> None:
    def ask() -> bool:
        with save_on_cpu():
            before = saving_hooks(False)
            is_found = bool(checkpoints_around())
            assert saving_hooks(False) == before and len(all_saving_hooks()) == 2
        return is_found

    assert found_in(ask) == [True, True]
    assert saving_hooks(True) is None


@pytest.mark.parametrize("preserves", [True, False])
def test_a_checkpoint_puts_back_torchs_generator_if_it_preserves_states(preserves: bool) -> None:
    forward, _ = found_in(lambda: is_drawn_anew(torch.default_generator), preserve_rng_state=preserves)
    assert forward is not preserves


def test_a_checkpoint_puts_back_no_other_generator() -> None:
    assert found_in(lambda: is_drawn_anew(torch.Generator()))[0]


@pytest.mark.parametrize("outer", [True, False])
def test_each_checkpoint_around_has_to_put_it_back(outer: bool) -> None:
    def inner() -> Any:
        return found_in(lambda: is_drawn_anew(torch.default_generator), preserve_rng_state=not outer)[0]

    assert found_in(inner, preserve_rng_state=outer)[0]
