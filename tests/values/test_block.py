"""Where values lie in a saved block."""

from __future__ import annotations

import random

import torch

from treeplay.values.block import PLACE_BYTES, OutputBlock, SavedLayout, SavedPart
from treeplay.values.spec import TensorSpec


def test_each_output_begins_where_an_allocator_would_let_it_and_none_overlap() -> None:
    chance = random.Random(3)
    for _ in range(50):
        sizes = {output: chance.randrange(1, 3000) for output in chance.sample(range(100), chance.randrange(1, 20))}
        block = OutputBlock.of(sizes.items())
        taken: set[int] = set()
        for output, begin in block.places:
            assert begin % PLACE_BYTES == 0 and output in block
            mine = set(range(begin, begin + sizes[output]))
            assert not mine & taken and begin + sizes[output] <= block.nbytes
            taken |= mine
        assert len(block.places) == len(sizes) and 100 not in block


def test_a_layout_says_how_many_values_lie_elsewhere() -> None:
    spec = TensorSpec((2,), (1,), torch.float32, torch.device("cpu"))
    layout = SavedLayout((SavedPart(0, spec), None, SavedPart(512, spec)), 1024)
    assert layout.apart == 1 and str(layout) == "2 of 3 saved values in 1024 bytes"
