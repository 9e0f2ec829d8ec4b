"""Copies lie in memory as their source does."""

from __future__ import annotations

import pytest
import torch

from treeplay.backend.copies import buffer_like, copy_of, expanded_dimensions, fill


def numbers(count):
    return torch.arange(float(count)) * 3 + 1


SOURCES = {
    "a view at an offset": (lambda: numbers(12).view(3, 4).t()[1:], 44),
    "expanded": (lambda: numbers(3).view(1, 3).expand(4, 3), 12),
    "empty": (lambda: torch.empty(0, 3), 0),
    "overlapping": (lambda: numbers(5).as_strided((3, 3), (1, 1)), 20),
    "overlapping and expanded": (lambda: numbers(8).as_strided((2, 3, 3), (0, 1, 2), 1), 28),
    "with holes": (lambda: numbers(20).view(4, 5)[:, ::2], 80),
    "a number": (lambda: torch.tensor(7), 8),
}


@pytest.mark.parametrize("name", SOURCES)
def test_D24_a_copy_lies_as_its_source_in_the_least_memory(name):
    make, nbytes = SOURCES[name]
    source = make()
    made = copy_of(source)
    assert torch.equal(made, source) and made.stride() == source.stride() and made.dtype == source.dtype
    assert (made.storage_offset() == 0 and made.data_ptr() != source.data_ptr()) or not nbytes
    assert made.untyped_storage().nbytes() <= nbytes


def test_D24_elements_that_share_an_address_still_do():
    made = copy_of(numbers(5).as_strided((3, 3), (1, 1)))
    made[0, 1] = -1
    assert made[1, 0] == -1


def test_D24_a_buffer_is_made_without_values():
    source = numbers(12).view(3, 4).t()
    assert (buffer_like(source).stride(), buffer_like(source).shape) == (source.stride(), source.shape)


def test_D25_expanded_dimensions_of_a_value():
    row = numbers(3).view(1, 3)
    assert expanded_dimensions(row.expand(4, 3)) == (0,)
    assert expanded_dimensions(torch.ones(4, 3)) == () and expanded_dimensions(5) is None


def test_D25_a_buffer_with_a_broadcast_is_filled_where_a_plain_copy_raises():
    buffer = buffer_like(numbers(3).view(1, 3).expand(4, 3))
    with pytest.raises(RuntimeError):
        buffer.copy_(torch.ones(1, 3).expand(4, 3))
    for factor in (2, 5):
        value = (numbers(3) * factor).view(1, 3).expand(4, 3)
        fill(buffer, value)
        assert torch.equal(buffer, value)


def test_Dplus3_a_hankel_view_is_filled_anew_each_time():
    buffer = buffer_like(numbers(5).as_strided((3, 3), (1, 1)))
    for factor in (2, 5, 7):
        value = (numbers(5) * factor).as_strided((3, 3), (1, 1))
        fill(buffer, value)
        assert torch.equal(buffer, value)
