"""What schemas tell of operators."""

from __future__ import annotations

import pytest
import torch

from treeplay.torch_seam.schemas import (
    aten,
    by_name,
    drops_none,
    is_inplace_view,
    is_random,
    is_written,
    out_form,
    returns_count,
    written_arguments,
)


def test_what_is_written_is_told_by_the_schema() -> None:
    assert [is_written(argument) for argument in aten.add_.Tensor._schema.arguments] == [True, False, False]


def test_arguments_are_named_by_the_schema() -> None:
    assert by_name(aten.sub.Tensor, ("x", "y"), {"alpha": 3}) == {"self": "x", "other": "y", "alpha": 3}


def test_written_arguments_are_found_in_lists_and_by_name() -> None:
    assert written_arguments(aten._foreach_sub_.List, (["x", "y"], ["z", "w"]), {}) == ["x", "y"]
    assert written_arguments(aten.sub.out, ("x", "y"), {"out": "z"}) == ["z"]


def test_statistics_that_are_not_there_are_not_written() -> None:
    op = aten._native_batch_norm_legit_functional.default
    assert written_arguments(op, ("x", None, None, None, None, True, 0.1, 1e-5), {}) == []


@pytest.mark.parametrize(
    ("more", "expected"),
    [(((), {}), True), (((0.0,), {}), True), (((0.2,), {}), False), (((), {"dropout_p": 0.2}), False)],
)
def test_attention_drops_none_unless_it_is_told_to(
    more: tuple[tuple[float, ...], dict[str, float]], expected: bool
) -> None:
    args, kwargs = more
    assert drops_none(aten._scaled_dot_product_flash_attention.default, ("q", "k", "v", *args), kwargs) is expected
    assert not drops_none(aten.bernoulli.p, ("q", *args), kwargs)


def test_an_operator_of_the_users_drops_what_its_schema_says() -> None:
    with torch.library._scoped_library("treeplay_dropping", "FRAGMENT") as library:
        library.define("usual(Tensor x, float dropout_p=0.5) -> Tensor")
        op = torch.ops.treeplay_dropping.usual.default
        assert not drops_none(op, ("x",), {}) and drops_none(op, ("x", 0.0), {})


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
