"""Results keep the strides that they were traced with."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.fx
from torch import nn

from treeplay.backend.strides import noted_strides, visible_strides, with_strides
from treeplay.torch_compile import backend
from treeplay.torch_seam.tensors import strided_copy


@pytest.mark.parametrize(
    ("shape", "stride"), [((3, 4), (1, 3)), ((4, 3), (0, 1)), ((0, 3), (3, 1)), ((2, 3, 1), (1, 2, 6))]
)
def test_D24_a_copy_has_the_given_strides_and_the_values(shape, stride):
    source = torch.arange(12.0)[: shape[-1]].expand(shape) if 0 in stride else torch.randn(shape)
    made = strided_copy(source, stride)
    assert made.stride() == stride and torch.equal(made, source) and made.storage_offset() == 0


def test_D24_a_broadcast_takes_the_memory_of_its_first_part():
    made = strided_copy(torch.ones(1, 3).expand(4, 3).contiguous(), (0, 1))
    assert made.untyped_storage().nbytes() == 12


def test_a_result_that_is_laid_out_otherwise_is_copied_and_others_pass():
    module = torch.fx.symbolic_trace(lambda x: (x * 2, x + 1, None))
    for node in module.graph.nodes:
        node.meta["val"] = torch.empty(3, 4)
    kept = torch.ones(3, 4)
    wanted = visible_strides(noted_strides(module), None)
    results = with_strides(lambda args: [torch.ones(4, 3).t(), kept, None], wanted)([])
    assert results[0].stride() == (4, 1) and results[1] is kept and results[2] is None


@pytest.mark.compile
def test_gradients_of_a_convolution_with_normalisation():
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)
    )
    twin, x = copy.deepcopy(net), torch.randn(2, 3, 8, 8)
    torch.compile(net, backend=backend)(x).square().mean().backward()
    twin(x).square().mean().backward()
    for mine, wanted in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.parametrize("inner", ["aten", "inductor"])
def test_results_whose_sizes_depend_on_values(inner: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).nonzero() * 3

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = torch.compile(program, backend=backend, options={"inner": inner}, fullgraph=True)
        for x in (torch.ones(4, 4), torch.eye(4), torch.zeros(4, 4)):
            assert torch.equal(run(x, x), program(x, x))
