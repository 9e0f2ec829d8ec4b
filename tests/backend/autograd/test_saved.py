"""The split of a differentiable program's graph: the least memory, and no tensor of the caller's that eager does not keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from treeplay.backend.autograd.differentiable import trace_flat
from treeplay.backend.autograd.keeping import Keeping, keep_for_backward
from treeplay.backend.autograd.saved import callers_tensors, least_memory
from treeplay.torch_seam.schemas import KEEPS_FOR_BACKWARD
from treeplay.wrap.aot import Compilers, wrap_function


def saved_by(function: Any, *samples: torch.Tensor) -> set[str]:
    """What the chosen forward saves of the caller's tensors."""
    seen: list[set[str]] = []

    def split(joint: Any, inputs: Any, **known: Any) -> Any:
        forward, backward = least_memory(joint, inputs, **known)
        seen.append(callers_tensors(forward, known["num_fwd_outputs"]))
        return forward, backward

    def same(module: Any, inputs: Any) -> Any:
        return module

    wrap_function(function, list(samples), Compilers(same, same, same, split))
    return seen[0]


def test_a_parameter_that_eager_does_not_keep_is_not_kept() -> None:
    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    assert saved_by(lambda x, w: [(x * w).sin().sum()], x, w) == {"primals_1"}  # x, for the gradient of w


def test_what_eager_keeps_is_kept() -> None:
    x, w = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    assert saved_by(lambda x, w: [F.linear(x, w).relu().sum()], x, w) == {"primals_1", "primals_2"}


def test_a_result_that_eager_does_not_keep_is_not_kept() -> None:
    x = torch.randn(3, requires_grad=True)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        h = x.sin()
        return [h * 2, h.exp()]

    kept = saved_by(function, x)
    assert kept <= {"primals_1", "exp"}


@pytest.mark.skipif(not KEEPS_FOR_BACKWARD, reason="torch was built without oneDNN")
def test_operators_keep_what_their_backward_needs() -> None:
    graph = torch.fx.Graph()
    values = [graph.placeholder(f"v{k}") for k in range(7)]
    node = graph.call_function(
        torch.ops.aten.mkldnn_rnn_layer.default,
        (*values, False, [], 2, 4, 1, True, False, False, True),
    )
    graph.output([node])
    module = torch.fx.GraphModule(nn.Module(), graph)
    assert keep_for_backward(module) and isinstance(node.target, Keeping)
    x, h = torch.randn(5, 1, 3), torch.zeros(1, 4)
    with torch.no_grad():
        found = module(x, torch.randn(16, 3), torch.randn(16, 4), torch.zeros(16), torch.zeros(16), h, h)[0]
    assert all(isinstance(part, torch.Tensor) and not part.requires_grad for part in found)  # the last is the workspace
    assert not keep_for_backward(module)


def test_a_look_at_a_program_compiles_nothing() -> None:
    call = trace_flat(lambda x: [x * 2], [torch.ones(2, requires_grad=True)], "inductor", ())
    assert call.plan.node is not None and not call.backward.is_compiled
