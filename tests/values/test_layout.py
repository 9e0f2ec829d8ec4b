"""How tensors lie in memory, against a count of all addresses."""

from __future__ import annotations

import itertools

import pytest

from treeplay.values.layout import expanded, overlaps, span

APART = [
    ((3, 4), (4, 1)),
    ((3, 4), (1, 3)),
    ((4, 3), (0, 1)),
    ((2, 3), (10, 2)),
    ((2, 384), (75648, 1)),
    ((8, 1500, 1), (1504, 1, 1)),
    ((2, 2), (3, 2)),
    ((2, 3), (3, 2)),
    ((0, 3), (1, 1)),
]
MEETING = [((3, 3), (1, 1)), ((4, 2), (1, 2)), ((3, 4), (2, 1)), ((5, 3, 3), (0, 1, 1))]


@pytest.mark.parametrize(("sizes", "strides"), APART)
def test_D26_no_two_indices_meet(sizes, strides):
    assert not overlaps(sizes, strides)


@pytest.mark.parametrize(("sizes", "strides"), MEETING)
def test_D26_two_indices_meet(sizes, strides):
    assert overlaps(sizes, strides)


def addresses(sizes, strides):
    kept = [1 if stride == 0 else size for size, stride in zip(sizes, strides, strict=True)]
    return [
        sum(at * stride for at, stride in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, kept))
    ]


def test_D26_is_exact_for_every_small_layout():
    for sizes in itertools.product((1, 2, 3), repeat=3):
        for strides in itertools.product((0, 1, 2, 3, 5), repeat=3):
            found = addresses(sizes, strides)
            assert overlaps(sizes, strides) == (len(set(found)) < len(found)), (sizes, strides)


def test_D26_a_large_doubt_is_an_overlap_and_a_large_plain_tensor_none():
    assert overlaps((2000, 2000), (2000, 1999)) and not overlaps((2000, 2000), (2000, 1))


def test_D26_far_addresses_take_no_memory():
    assert not overlaps((100, 100), (10**12 + 1, 10**12))


def test_D24_a_span_is_what_the_view_addresses():
    assert (span((3, 3), (1, 4)), span((4, 3), (0, 1)), span((0, 3), (3, 1))) == (11, 3, 0)


def test_D25_expanded_dimensions():
    assert (expanded((4, 3), (0, 1)), expanded((4, 3), (3, 1)), expanded((1, 3), (0, 1))) == ((0,), (), ())
