"""Minus zero in functional graphs: what is put in the places of operators that lose it."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from support import assert_same
from treeplay.lower.inductor.signs import keep_signs, with_signs

aten = torch.ops.aten
ZEROS = torch.tensor([0.0, -0.0, 1.5, -1.5, -2.0, 5.0, -1e9, float("inf"), float("nan")])


def program(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        -x,
        torch._neg_view(x) * 1,
        x * -0.0,
        x + (-0.0),
        torch.full((2,), -0.0, device=x.device) * 3,
        torch.nn.functional.pad(x, (1, 0), value=-0.0),
        torch.where(x > 0, -0.0, x),
    ]


def test_negations_and_negative_zeros_elsewhere_than_on_the_cpu_are_products() -> None:
    module = make_fx(program)(ZEROS.to("meta"))
    keep_signs(module.graph)
    module.graph.lint()
    for node in module.graph.nodes:
        assert node.target not in (aten.neg.default, aten._neg_view.default)
        assert "-0.0" not in map(str, node.args)
        if "device" in node.kwargs:
            node.kwargs = node.kwargs | {"device": torch.device("cpu")}
    module.recompile()
    for found, expected in zip(module(ZEROS), program(ZEROS), strict=True):
        assert_same(found, expected)
        assert_same(found.signbit()[~found.isnan()], expected.signbit()[~expected.isnan()])


def test_on_the_cpu_they_are_left() -> None:
    module = make_fx(program)(ZEROS)
    before = str(module.graph)
    keep_signs(module.graph)
    assert str(module.graph) == before


@pytest.mark.parametrize("divisor", [2, -2.0, ZEROS.flip(0)])
def test_a_remainder_taken_apart_is_torchs(divisor: float | torch.Tensor) -> None:
    table = with_signs({})
    run = make_fx(lambda x: x.remainder(divisor), decomposition_table=table)(ZEROS)
    assert aten.remainder.Scalar not in {node.target for node in run.graph.nodes}
    found, expected = run(ZEROS), ZEROS.remainder(divisor)
    assert_same(found, expected)
    assert_same(found.signbit()[~found.isnan()], expected.signbit()[~expected.isnan()])


def test_a_remainder_of_integers_is_left_whole() -> None:
    run = make_fx(lambda x: x.remainder(2), decomposition_table=with_signs({}))(torch.arange(3))
    assert aten.remainder.Scalar in {node.target for node in run.graph.nodes}
