"""The checks that compilers leave out are in the graph that they are given, for the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from treeplay.lower.torch_private import decompositions

PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "bernoulli": (torch.bernoulli, torch.tensor([0.5, 1.5])),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(x, torch.ones(2)), torch.tensor([0.5, float("nan")])),
    "normal": (lambda x: torch.normal(0.0, x), torch.tensor([0.5, -0.5])),
    "repeat_interleave": (lambda n: torch.ones(3).repeat_interleave(n[:1].expand(3), output_size=3), torch.tensor([2])),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_parts_check_what_the_operator_checks(what: str) -> None:
    program, bad = PROGRAMS[what]
    good = torch.ones_like(bad)
    graph = make_fx(program, decomposition_table=decompositions(eager_random=False))(good)
    assert graph(good).shape == program(good).shape
    for run in (program, graph.forward):
        with pytest.raises(RuntimeError):
            run(bad)


def test_on_another_device_the_parts_are_the_compilers_own() -> None:
    graph = make_fx(torch.bernoulli, decomposition_table=decompositions(eager_random=False))(
        torch.ones(2, device="meta")
    )
    assert "_assert_async" not in graph.code
