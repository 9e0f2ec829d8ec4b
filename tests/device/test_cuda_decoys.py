"""Decoys look like the real tensors and lie elsewhere, each by a distance of its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treeplay.device.cuda.capturing.decoys import make_decoys, place_decoys

DEVICES = pytest.mark.parametrize(
    "device",
    [
        "cpu",  # where memory is memory as well
        pytest.param(
            "cuda",
            marks=pytest.mark.gpu,
        ),
    ],
)


@given(
    starts=st.lists(st.integers(1 << 40, 1 << 46), min_size=1, max_size=30),
    base=st.integers(1 << 40, 1 << 46),
    congruent=st.sampled_from([16, 64, 512]),
    seed=st.integers(0, 99),
)
def test_places_are_congruent_in_range_and_at_distances_of_their_own(starts, base, congruent, seed):
    room = 16 * (len(starts) + 1) * 512
    places = place_decoys(starts, base, room, seed=seed, congruent_bytes=congruent)
    deltas = [place - start for place, start in zip(places, starts, strict=True)]
    assert all(delta % congruent == 0 for delta in deltas)
    assert congruent == 512 or all(delta % (2 * congruent) for delta in deltas)
    assert len({0, *deltas}) == len(deltas) + 1
    assert all(base <= place < base + room + 2 * 512 for place in places)


def test_a_tensor_given_twice_gets_two_places():
    places = place_decoys([4096, 4096], 1 << 20, 48 * 512, seed=0)
    assert len(set(places)) == 2


@DEVICES
def test_decoys_have_shape_strides_and_offset_of_the_real_ones(device):
    base = torch.randn(40, 30, device=device)
    tensors = [base, base[3:9, ::2], torch.zeros((), device=device, dtype=torch.int64), base.bfloat16().t()]
    for seed in (1, 2):
        for decoy, real in zip(make_decoys(tensors, seed=seed), tensors, strict=True):
            assert (decoy.shape, decoy.stride(), decoy.dtype) == (real.shape, real.stride(), real.dtype)
            assert decoy.storage_offset() == real.storage_offset()
            assert decoy.untyped_storage().nbytes() == real.untyped_storage().nbytes()
            assert decoy.data_ptr() != real.data_ptr()
            assert decoy.data_ptr() % 512 == real.data_ptr() % 512
            decoy.fill_(1)  # the memory is there


@DEVICES
def test_views_of_one_storage_stay_as_far_apart_as_they_are(device):
    base = torch.randn(1000, device=device)
    views = [base, base[100:200], torch.randn(10, device=device)]
    first, second, other = make_decoys(views, seed=3)
    assert second.data_ptr() - first.data_ptr() == 400
    assert other.data_ptr() - views[2].data_ptr() != first.data_ptr() - base.data_ptr()


@DEVICES
def test_a_decoy_of_a_leaf_is_a_leaf_that_needs_a_gradient(device):
    x = torch.randn(3, device=device, requires_grad=True)
    (decoy,) = make_decoys([x], seed=0)
    assert decoy.requires_grad and decoy.is_leaf
    assert make_decoys([], seed=0) == []


@pytest.mark.gpu
def test_decoys_keep_their_memory_and_give_it_back():
    x = torch.randn(1 << 20, device="cuda")
    before = torch.cuda.memory_allocated()
    decoys = make_decoys([x, x], seed=1)
    assert torch.cuda.memory_allocated() >= before + x.nbytes
    assert torch.cuda.memory_allocated() < before + 1.5 * x.nbytes, "they share one block"
    del decoys
    assert torch.cuda.memory_allocated() == before
