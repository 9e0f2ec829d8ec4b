"""Whole bodies of training recorded by hand: optimizers, gradient scaling, recurrent layers, memory formats."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from treeplay.graphs import Graph, graph, make_graphed_callables

pytestmark = pytest.mark.gpu

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True),
    "sgd foreach": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=True),
    "sgd fused": lambda ps: torch.optim.SGD(ps, lr=0.1, fused=True),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.01, capturable=True, foreach=False),
    "adam foreach": lambda ps: torch.optim.Adam(ps, lr=0.01, capturable=True, foreach=True, amsgrad=True),
    "adam fused": lambda ps: torch.optim.Adam(ps, lr=0.01, capturable=True, fused=True),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01, capturable=True),
    "adamw fused": lambda ps: torch.optim.AdamW(ps, lr=0.01, capturable=True, fused=True),
}


def on_a_side_stream(run: Callable[[], object]) -> None:
    """Warm up as the docs of capture say."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_G37_a_recorded_optimizer_step(name: str) -> None:
    parameters = [nn.Parameter(torch.randn(3, size, device="cuda")) for size in (2, 5)]
    twins = copy.deepcopy(parameters)
    optimizer, eager = OPTIMIZERS[name](parameters), OPTIMIZERS[name](twins)
    gradients = [[torch.randn_like(p) for p in parameters] for _ in range(6)]
    for p, gradient in zip(parameters, gradients[0], strict=True):
        p.grad = gradient.clone()
    on_a_side_stream(optimizer.step)
    recording = Graph(device="cuda")
    with graph(recording, capture_error_mode="thread_local"):
        optimizer.step()
    for given in gradients[1:]:
        for p, gradient in zip(parameters, given, strict=True):
            p.grad.copy_(gradient)
        recording.replay()
    for given in gradients:
        for p, gradient in zip(twins, given, strict=True):
            p.grad = gradient.clone()
        eager.step()
    torch.testing.assert_close(parameters, twins)


def test_G37_gradient_scaling_around_a_recorded_module() -> None:
    module = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)).cuda()
    twin = copy.deepcopy(module)
    with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
        make_graphed_callables(module, (torch.randn(8, 4, device="cuda"),))
    pairs = []
    for part in (module, twin):
        optimizer = torch.optim.AdamW(part.parameters(), lr=0.01, fused=True)
        pairs.append((part, optimizer, torch.amp.GradScaler("cuda", init_scale=2.0**16, growth_interval=2)))
    for step in range(8):
        x = torch.randn(8, 4, device="cuda") * (1e4 if step == 3 else 1)
        for part, optimizer, scaler in pairs:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = part(x).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert pairs[0][2].get_scale() == pairs[1][2].get_scale()
    torch.testing.assert_close(list(module.parameters()), list(twin.parameters()), rtol=1e-3, atol=1e-3)


def test_G37_a_recorded_whole_step_with_scaling() -> None:
    module = nn.Linear(4, 4).cuda()
    twin = copy.deepcopy(module)
    x = torch.randn(8, 4, device="cuda")
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, capturable=True, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
            loss = module(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    on_a_side_stream(step)
    recording = Graph(device="cuda")
    with graph(recording, capture_error_mode="thread_local"):
        step()
    eager, eager_scaler = torch.optim.AdamW(twin.parameters(), lr=0.01, fused=True), torch.amp.GradScaler("cuda")
    batches = [x.clone(), *(torch.randn(8, 4, device="cuda") for _ in range(4))]
    for batch in batches[1:]:
        x.copy_(batch)
        recording.replay()
    for batch in batches:
        eager.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = twin(batch).pow(2).mean()
        eager_scaler.scale(loss).backward()
        eager_scaler.step(eager)
        eager_scaler.update()
    torch.testing.assert_close(list(module.parameters()), list(twin.parameters()), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_G37_channels_last_convolutions_train_like_eager(memory_format: torch.memory_format) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2), nn.Flatten())
    module = module.cuda().to(memory_format=memory_format)
    twin = copy.deepcopy(module)

    def batch() -> torch.Tensor:
        return torch.randn(4, 3, 16, 16, device="cuda").to(memory_format=memory_format)

    make_graphed_callables(module, (batch(),))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9) for part in (module, twin)]
    for _ in range(5):
        x = batch()
        for part, optimizer in zip((module, twin), optimizers, strict=True):
            optimizer.zero_grad()
            part(x).pow(2).mean().backward()
            optimizer.step()
    torch.testing.assert_close(list(module.parameters()), list(twin.parameters()), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(module[1].running_mean, twin[1].running_mean)


def test_G37_a_recurrent_layer_with_dropout_before_inside_and_after() -> None:
    layer = nn.LSTM(8, 8, num_layers=2, dropout=0.5).cuda()
    x = torch.ones(5, 3, 8, device="cuda")
    with torch.no_grad():
        layer(x)
        recording = Graph(device="cuda")
        with graph(recording, capture_error_mode="thread_local"):
            out, _ = layer(x)
        results = []
        for _ in range(2):
            recording.replay()
            results.append(out.clone())
        layer(x)
    assert not torch.equal(*results)
    assert all(result.isfinite().all() for result in results)


def test_G37_a_wrapped_recurrent_layer_trains_like_eager() -> None:
    layer = nn.LSTM(8, 8, num_layers=2).cuda()
    twin = copy.deepcopy(layer)
    make_graphed_callables(layer, (torch.randn(5, 3, 8, device="cuda"),))
    for _ in range(3):
        x = torch.randn(5, 3, 8, device="cuda")
        for part in (layer, twin):
            out, (hidden, cell) = part(x)
            (out.sum() + hidden.sum() * 2 - cell.sum()).backward()
    for a, b in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_G37_a_transformer_layer_trains_like_eager(dtype: torch.dtype) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).cuda().to(dtype)
    twin = copy.deepcopy(layer)
    make_graphed_callables(layer, (torch.randn(2, 7, 32, device="cuda", dtype=dtype),))
    for _ in range(3):
        x = torch.randn(2, 7, 32, device="cuda", dtype=dtype)
        for part in (layer, twin):
            part(x).float().pow(2).mean().backward()
    tolerance = 1e-4 if dtype is torch.float32 else 3e-2
    for a, b in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance)


def test_G37_dropout_draws_what_eager_would() -> None:
    module = nn.Dropout(0.5)
    make_graphed_callables(module, (torch.ones(1000, device="cuda", requires_grad=True),))
    x = torch.ones(1000, device="cuda", requires_grad=True)
    torch.manual_seed(3)
    found = [module(x), module(x)]
    after = torch.rand(4, device="cuda")
    torch.manual_seed(3)
    expected = [nn.functional.dropout(x, 0.5) for _ in range(2)]
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert torch.equal(torch.rand(4, device="cuda"), after)
    found[1].sum().backward()
    assert torch.equal(x.grad, expected[1].detach())
