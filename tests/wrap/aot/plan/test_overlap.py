"""Overlap of strided tensors is exact, also where spans interleave."""

from __future__ import annotations

import random

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from treeplay.wrap.aot.plan.overlap import byte_span, overlap
from wrap.aot.oracle import numbers


def bytes_of(tensor: torch.Tensor) -> set[int]:
    """Every byte of a tensor in its storage, one by one."""
    width = tensor.element_size()
    count = tensor.untyped_storage().nbytes() // width
    places = torch.arange(count).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return {int(place) * width + k for place in places.reshape(-1) for k in range(width)}


def test_W9_interleaved_slices_are_apart() -> None:
    x = numbers(6, 4)
    assert not overlap(x[:, ::2], x[:, 1::2])
    assert not overlap(x[:, :2], x[:, 2:])
    assert overlap(x[:, :3], x[:, 2:])
    assert not overlap(x[:3], x[3:])
    assert not overlap(x, x.clone())
    assert not overlap(x[:0], x)


def test_W9_overlap_agrees_with_a_count_of_bytes() -> None:
    choose = random.Random(3)
    storage = numbers(64)
    seen = {True: 0, False: 0}
    for _ in range(600):
        pair = []
        for _ in range(2):
            size = [choose.randint(1, 3) for _ in range(choose.randint(0, 3))]
            stride = [choose.randint(0, 7) for _ in size]
            view = storage.as_strided(size, stride, choose.randint(0, 20))
            pair.append(view if choose.random() < 0.7 else view.view(torch.int16) if size and stride[-1] == 1 else view)
        expected = bool(bytes_of(pair[0]) & bytes_of(pair[1]))
        assert overlap(*pair) == expected, [(t.shape, t.stride(), t.storage_offset(), t.dtype) for t in pair]
        seen[expected] += 1
    assert min(seen.values()) > 100


def test_W9_overlap_of_tensors_without_data() -> None:
    with FakeTensorMode():
        x = torch.empty(6, 4)
        assert overlap(x[:4], x[2:]) and not overlap(x[:3], x[3:])
    assert byte_span(numbers(4)[1:3]) == (4, 12)
