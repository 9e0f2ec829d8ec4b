"""Does a call's memory overlap as it did when it was recorded?"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support import jit
from treeplay.values.overlap import overlapping, overlaps_itself
from treeplay.wrap.apart import SharingCheck


def test_tensors_of_their_own_are_apart():
    arguments = (torch.randn(4),)
    assert SharingCheck([1], [])(arguments, (*arguments, torch.randn(4)))


def test_an_argument_inside_written_state_is_not_apart():
    state = torch.randn(8)
    argument = state[2:4]
    assert not SharingCheck([1], [])((argument,), (argument, state))


def test_slices_of_a_dataset_stay_apart_without_asking_again():
    data, state = torch.randn(100), torch.randn(4)
    apart = SharingCheck([1], [])
    assert all(apart((data[i : i + 4],), (data[i : i + 4], state)) for i in range(5))
    assert not apart((state[:2],), (state[:2], state))


def test_state_that_moves_into_an_arguments_memory_is_noticed():
    data, state = torch.randn(100), torch.randn(4)
    apart = SharingCheck([1], [])
    assert apart((data[:4],), (data[:4], state))
    state.set_(data[2:6])
    assert not apart((data[:4],), (data[:4], state))


def test_arguments_of_an_opaque_program_are_apart_from_each_other_and_from_state():
    data, state = torch.randn(100), torch.randn(4)
    apart = SharingCheck([0, 1], [], watched=[2])

    def ask(first, second):
        return apart((first, second), (first, second, state))

    assert ask(torch.randn(3), torch.randn(3)) and ask(data[:4], torch.randn(3)) and ask(data[4:8], torch.randn(3))
    assert ask(data[:4], data[4:8]) and not ask(data[:4], data[3:7]) and not ask(state[:2], data[:4])
    state.set_(data[2:6])
    assert not ask(data[:4], torch.randn(3))


def test_state_that_moves_into_the_memory_of_the_same_argument_is_noticed():
    data, state, other = torch.randn(8), torch.randn(4), torch.randn(3)
    apart = SharingCheck([0, 1], [], watched=[2])
    given = data[:4], other
    assert apart(given, (*given, state)) and apart(given, (*given, state))
    state.set_(data[2:6])
    assert not apart(given, (*given, state))


def test_memory_shared_as_it_was_recorded_is_right():
    data, state = torch.randn(100), torch.randn(4)
    apart = SharingCheck([0, 1], [(0, 1, 8)], watched=[2])
    for start in (0, 10):
        first, second = data[start : start + 4], data[start + 2 : start + 6]
        assert apart((first, second), (first, second, state))
    for others in ((data[:4], data[4:8]), (data[:4], data[1:5]), (data[2:6], data[:4])):
        assert not apart(others, (*others, state))


@given(
    spans=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), min_size=1, max_size=6),
    written=st.sets(st.integers(0, 5)),
)
@settings(deadline=None, max_examples=200, derandomize=True)
def test_overlapping_pairs_agree_with_brute_force(spans, written):
    base = torch.zeros(32)
    tensors = [base[start : start + length] for start, length in spans]
    written &= set(range(len(tensors)))
    bytes_of = [set(range(start, start + length)) for start, length in spans]
    expected = [
        (i, j)
        for j in range(len(spans))
        for i in range(j)
        if bytes_of[i] & bytes_of[j] and (i in written or j in written)
    ]
    assert overlapping(tensors, sorted(written)) == sorted(expected)


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((3, 4), (4, 1), False),
        ((3, 4), (0, 1), True),
        ((3, 3), (1, 1), True),
        ((4, 3), (1, 4), False),
        ((1, 4), (0, 1), False),
    ],
)
def test_a_tensor_that_overlaps_itself(shape, stride, expected):
    assert overlaps_itself(torch.zeros(16).as_strided(shape, stride)) is expected


def test_state_that_comes_to_share_memory_with_written_state_is_noticed():
    argument, state, other = torch.randn(4), torch.randn(4), torch.randn(4)
    apart = SharingCheck([1], [], [1, 2])
    assert apart((argument,), (argument, state, other)) and apart((argument,), (argument, state, other))
    other.data = torch.randn(4)
    assert apart((argument,), (argument, state, other))
    other.data = state.data
    assert not apart((argument,), (argument, state, other))


def test_arguments_made_of_one_array_are_not_apart():
    array = torch.randn(6).numpy()
    one, other = torch.from_numpy(array[:4]), torch.from_numpy(array[2:])
    apart = SharingCheck([1], [])
    assert not apart((one, other), (one, other))
    far = torch.from_numpy(array[4:])
    assert apart((one, far), (one, far)) and not apart((one, other), (one, other))


def test_a_slice_of_state_is_found_there_again_by_addresses_alone(monkeypatch):
    table, cache = torch.arange(9.0), torch.zeros(3)

    def step(position):
        cache.add_(position * 2 - table.sum())
        return cache - position

    jitted = jit(step)
    jitted(table[0:1])
    jitted(table[1:2])
    with monkeypatch.context() as patch:  # which costs more than anything else of such a call
        patch.setattr("treeplay.values.overlap.interval", None)
        found = [jitted(table[at : at + 1]) for at in (2, 7, 3)]
    assert jitted.statistics().replays == 4
    expected = torch.stack([torch.arange(9.0)[at] for at in (2, 7, 3)])
    assert torch.equal(torch.stack(found)[1:, 0] - torch.stack(found)[:-1, 0], expected[1:] - 36 + expected[:-1])
