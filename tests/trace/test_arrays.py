"""What was in an array is known, however it is written to."""

from __future__ import annotations

import numpy
import torch

from treeplay.trace.arrays import ArrayContent, is_array


def test_a_write_shows() -> None:
    array = numpy.array([0.0, numpy.nan])
    content = ArrayContent(array)
    assert content.is_the_same
    array[0] = -0.0
    assert not content.is_the_same
    array[0] = 0.0
    assert content.is_the_same


def test_arrays_are_told_from_scalars_and_tensors() -> None:
    assert is_array(numpy.ones(())) and not is_array(numpy.float64(1)) and not is_array(torch.ones(()))
