"""Running statistics of batch norms: eager brings them up to date without telling autograd, and so does a replay. What ran
before and is still to be differentiated may be."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from support import assert_same, jit
from treeplay.wrap.aot.tracing import writes_inside

Tensor = torch.Tensor


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=0.3)
    )


def loss_of(out: Tensor) -> Tensor:
    return (out * torch.linspace(0.2, 1, 3)).exp().sum()


def versions(model: nn.Module) -> list[int]:
    return [buffer._version for buffer in model.buffers()]


@pytest.mark.compile
@pytest.mark.parametrize(("lower", "who_writes"), [("aten", "call"), ("inductor", "call"), ("inductor", "graph")])
@pytest.mark.parametrize("pending", range(4))
def test_a_forward_may_be_differentiated_after_later_ones(
    pending: int, lower: str, who_writes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`who_writes`: who brings the statistics up to date; on a GPU it is the graph."""
    if who_writes == "graph":
        monkeypatch.setattr(writes_inside, "is_costly", lambda target: True)
    model = network()
    twin = copy.deepcopy(model)
    jitted = jit(model, lower=lower)
    found, expected = [], []
    for call in range(6):
        x = torch.randn(5, 4)
        found.append(jitted(x))
        expected.append(twin(x))
        if call != pending:
            for out in (found[-1], expected[-1]):
                loss_of(out).backward()
        assert versions(model) == versions(twin)
    for out in (found[pending], expected[pending]):
        loss_of(out).backward()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    for mine, other in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(mine, other)
    assert jitted.statistics().replays == 5


def trained(model: nn.Module) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        return torch.autograd.grad(loss_of(model(x)), next(model.parameters()))[0]

    return step


def without_gradients(model: nn.Module) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model(x)  # type: ignore[no-any-return]

    return forward


@pytest.mark.compile
@pytest.mark.parametrize("lower", ["aten", "inductor"])
@pytest.mark.parametrize("make", [trained, without_gradients])
def test_an_eager_forward_may_be_differentiated_after_replays(make: Any, lower: str) -> None:
    model = network()
    twin = copy.deepcopy(model)
    jitted, program = jit(make(model), lower=lower), make(twin)
    pending, theirs, x = model(torch.ones(5, 4)), twin(torch.ones(5, 4)), torch.randn(5, 4)
    for _ in range(4):
        torch.testing.assert_close(jitted(x), program(x))
        assert versions(model) == versions(twin)
    for out in (pending, theirs):
        loss_of(out).backward()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    assert jitted.statistics().replays == 3


def test_statistics_that_the_program_also_writes_itself_are_told_of() -> None:
    def program(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        mean.mul_(0.5)
        return nn.functional.batch_norm(x, mean, variance, training=True) * 2 - 1

    jitted = jit(program)
    mine, theirs = ([torch.zeros(3), torch.ones(3)] for _ in range(2))
    for _ in range(4):
        x = torch.randn(5, 3)
        assert_same(jitted(x, *mine), program(x, *theirs))
        assert_same(mine, theirs)
        assert [one._version for one in mine] == [one._version for one in theirs]


def image_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2))


def instance_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True))


def means(model: nn.Module) -> list[Tensor]:
    return [buffer for name, buffer in model.named_buffers() if "running" in name]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("make", [image_network, instance_network])
def test_statistics_are_updated_where_nobody_reads_the_output(make: Any, mode: Any, device: str) -> None:
    """No schema says that a norm writes them: it was left out with its output."""
    mine, theirs = (make().to(device) for _ in range(2))

    def recalibrate(model: nn.Module, x: Tensor) -> Tensor:
        model(x)
        return means(model)[0] * 2

    jitted = jit(lambda x: recalibrate(mine, x))
    for k in range(5):
        x = torch.linspace(-1, 2 + k, 2 * 3 * 64, device=device).view(2, 3, 8, 8).cos()
        with mode():
            torch.testing.assert_close(jitted(x), recalibrate(theirs, x))
        torch.testing.assert_close(means(mine), means(theirs))
    assert jitted.statistics().replays >= 2


def test_a_pass_that_trains_a_norm_comes_before_one_that_reads_it() -> None:
    norm, twin = (nn.BatchNorm1d(3, affine=False) for _ in range(2))

    def program(norm: nn.BatchNorm1d, x: Tensor) -> Tensor:
        norm.train()
        norm(x)
        norm.eval()
        return norm(x) * 2 - 1  # type: ignore[no-any-return]

    jitted = jit(lambda x: program(norm, x))
    with torch.inference_mode():
        for k in range(5):
            x = torch.arange(12.0).view(4, 3).sin() * (k + 1)
            assert_same(jitted(x), program(twin, x))
    assert jitted.statistics().replays >= 3
