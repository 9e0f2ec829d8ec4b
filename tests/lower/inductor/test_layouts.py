"""Memory layouts in compiled graphs: results have eager's strides, convolutions of a training step read channels last."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from support import jit
from treeplay.errors import LoweringError
from treeplay.lower.inductor.layouts import check_layouts, has_convolutions_both_ways, put_channels_last
from treeplay.settings import settings

aten = torch.ops.aten


def force_stride_order(tensor: torch.Tensor, stride: list[int]) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, stride)
    return made.copy_(tensor)


def traced(function: Callable[..., tuple[torch.Tensor, ...]], *shapes: tuple[int, ...]) -> torch.fx.GraphModule:
    with FakeTensorMode(), torch.no_grad():
        return make_fx(function, tracing_mode="real")(*(torch.empty(shape) for shape in shapes))


def forward(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (aten.convolution(x.relu(), w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),)


def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = x.relu()
    y = aten.convolution(hidden, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    mask = [True, True, False]
    of_x, of_w, _ = aten.convolution_backward(y - 3, hidden, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
    return y * 2, of_x, of_w, hidden


def test_a_forward_alone_is_left_to_the_compiler() -> None:
    assert not has_convolutions_both_ways(traced(forward, (2, 3, 5, 5), (4, 3, 3, 3)))
    assert has_convolutions_both_ways(traced(both, (2, 3, 5, 5), (4, 3, 3, 3)))


def test_convolutions_read_channels_last_and_results_are_the_same() -> None:
    module = traced(both, (2, 3, 5, 5), (4, 3, 3, 3))
    plain = copy.deepcopy(module)
    put_channels_last(module, force_stride_order)
    for target, places in ((aten.convolution.default, 2), (aten.convolution_backward.default, 3)):
        (node,) = module.graph.find_nodes(op="call_function", target=target)
        for argument in node.args[:places]:
            assert argument.meta["val"].is_contiguous(memory_format=torch.channels_last)
    relu = module.graph.find_nodes(op="call_function", target=aten.relu.default)[0]
    assert len(relu.users) == 1, "a computed value is needed in one layout only"
    x, w = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    for found, expected in zip(module(x, w), plain(x, w), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


def test_matrices_are_left_alone() -> None:
    def lines(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (aten.convolution(x, w, None, [1], [0], [1], False, [0], 1),)

    module = traced(lines, (2, 3, 7), (4, 3, 3))
    put_channels_last(module, force_stride_order)
    assert not module.graph.find_nodes(op="call_function", target=aten.clone.default)


@pytest.mark.compile
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_compiled_results_have_eagers_strides(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).to(device).eval()

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = net(x)
        return y, y.permute(0, 2, 3, 1) - 1

    compiled = jit(program, lower="inductor")
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2, 3, 9, 9, device=device)
            for found, expected in zip(compiled(x), program(x), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
                assert found.stride() == expected.stride()


def make_step(net: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.compile
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_compiled_step_of_a_convolutional_net_is_eagers(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.manual_seed(0)
    first = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(200, 3)
    ).to(device)
    second = copy.deepcopy(first)

    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9) for net in (first, second)]
    fast, eager = jit(make_step(first, optimizers[0]), lower="inductor"), make_step(second, optimizers[1])
    for _ in range(5):
        x, y = torch.randn(4, 3, 9, 9, device=device), torch.randint(3, (4,), device=device)
        torch.testing.assert_close(fast(x, y), eager(x, y), rtol=1e-3, atol=1e-3)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-2, atol=1e-3)
        assert a.grad.stride() == b.grad.stride()


class Wide(nn.Module):
    """Convolutions that a compiler prefers channels last, one of them of single pixels: its gradient needs no copy."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 96, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(96)
        self.pixels = nn.Conv2d(96, 128, 1, stride=2, bias=False)
        self.last = nn.Conv2d(128, 128, 3, padding=1, bias=False)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pixels(self.norm(self.first(x)).relu())
        return self.head((x - self.last(x.relu())).relu().mean((2, 3)))


@pytest.mark.compile
@pytest.mark.gpu
def test_a_channels_last_step_stays_right_when_its_tensors_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "verify", True)
    torch.manual_seed(0)
    first = Wide().cuda()
    second = copy.deepcopy(first)

    optimizers = [torch.optim.AdamW(net.parameters(), lr=1e-3) for net in (first, second)]
    fast, eager = jit(make_step(first, optimizers[0]), lower="inductor"), make_step(second, optimizers[1])
    for _ in range(8):
        x, y = torch.randn(8, 3, 32, 32, device="cuda"), torch.randint(10, (8,), device="cuda")
        torch.testing.assert_close(fast(x, y), eager(x, y), rtol=1e-2, atol=1e-3)
    launch = fast.statistics().keys[0].recordings[0].launch
    assert launch is not None and launch.stage == "recorded"
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None and a.grad.stride() == b.grad.stride()
        torch.testing.assert_close(a.grad, b.grad, rtol=5e-2, atol=1e-2)


def test_an_operator_that_lies_otherwise_than_it_says_is_not_compiled() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.aten.sin.default, (x,)))
    check_layouts(graph)
    with graph.inserting_before(graph.output_node()):
        graph.call_function(torch.ops.aten._cudnn_rnn.default, (x,))
    with pytest.raises(LoweringError, match=r"_cudnn_rnn\.default lays out its results in another way"):
        check_layouts(graph)
