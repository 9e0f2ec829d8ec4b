"""What schemas tell of operators."""

from __future__ import annotations

import pytest

from treeplay.torch_seam.schemas import aten, is_inplace_view, is_random, is_written, out_form, returns_count


def test_what_is_written_is_told_by_the_schema() -> None:
    assert [is_written(argument) for argument in aten.add_.Tensor._schema.arguments] == [True, False, False]


@pytest.mark.parametrize(
    ("op", "form"),
    [
        (aten.mul.Tensor, aten.mul.out),
        (aten.mm.default, aten.mm.out),
        (aten.sum.default, aten.sum.IntList_out),  # a synonym with more arguments
        (aten.native_dropout.default, None),  # generated: it would allocate all the same
        (aten.mse_loss.default, None),  # resizes what it is given
    ],
)
def test_only_kernels_that_write_in_place_are_out_forms(op: object, form: object) -> None:
    found = out_form(op)
    assert (found and found.op) == form


def test_kinds() -> None:
    assert is_random(aten.bernoulli_.float) and not is_random(aten.add.Tensor)
    assert is_inplace_view(aten.t_.default) and not is_inplace_view(aten.t.default)
    assert returns_count(aten.native_layer_norm.default) == 3 and returns_count(aten.split.Tensor) is None
