"""`lower="capture"` on a GPU: what no trace could take is recorded as it runs, and gives what eager gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import training

pytestmark = pytest.mark.gpu

try:
    import triton
    from triton import language as tl
except ImportError:
    triton = None
else:

    @triton.jit
    def _soften(x, out, n, by, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) * 0.5 - by, mask=at < n)


def soften(x: torch.Tensor, by: float) -> torch.Tensor:
    out = torch.empty_like(x)
    _soften[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), by, BLOCK=128)
    return out


class Soften(torch.autograd.Function):
    """A kernel of one's own with a backward of one's own, which no trace can follow."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return soften(x, 0.25)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return soften(grad.contiguous(), 0.0)


class Softened(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Soften.apply(x)  # type: ignore[no-any-return]


def capture(program: Any) -> Any:
    return treeplay.jit(program, lower="capture", on_refusal="raise")


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (64, 16)), device="cuda")


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), Softened(), nn.Linear(32, 8)).cuda()


def is_recorded(jitted: Any) -> bool:
    [key] = jitted.statistics().keys
    return bool(key.recordings[-1].launch.stage == "recorded")


def test_a_kernel_over_arguments_that_move_and_results_that_are_kept() -> None:
    captured, kept = capture(lambda x: soften(x, 0.25) * 3 - x), []
    for _ in range(8):
        value = x()
        kept.append((captured(value), soften(value, 0.25) * 3 - value))
    assert all(torch.equal(found, expected) for found, expected in kept) and is_recorded(captured)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("accumulates", [False, True])
def test_a_whole_step_with_a_kernel_of_ones_own(is_compiled: bool, accumulates: bool) -> None:
    def make(model: Any, optimizer: Any) -> Any:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=not accumulates)
            loss = F.mse_loss(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters[id(optimizer)], 1.0)
            optimizer.step()
            return loss.detach()

        return step

    models = net(), net()
    sides = [torch.optim.AdamW(m.parameters(), lr=0.01, fused=True, capturable=True) for m in models]
    parameters = {id(side): list(m.parameters()) for side, m in zip(sides, models, strict=True)}
    step = capture(make(torch.compile(models[0]) if is_compiled else models[0], sides[0]))
    eager = make(models[1], sides[1])
    for _ in range(8):
        args = x(64, 16), x(64, 8)
        torch.testing.assert_close(step(*args), eager(*args), rtol=2e-3, atol=2e-3)
        for mine, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)
            assert torch.equal(sides[0].state[mine]["step"], sides[1].state[theirs]["step"])
    assert is_recorded(step) and step.statistics().recordings == 1


def test_a_gradient_scaler_with_a_fused_optimizer() -> None:
    models = net(), net()

    def make(model: Any) -> Any:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        scaler = torch.amp.GradScaler("cuda", init_scale=64.0, growth_interval=3)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return step, scaler

    (mine, scale), (theirs, twin_scale) = make(models[0]), make(models[1])
    step = capture(mine)
    for call in range(12):
        args = x(64, 16), x(64, 8)
        if call in (4, 8):
            args[0][0, 0] = torch.inf
        torch.testing.assert_close(step(*args), theirs(*args), rtol=1e-2, atol=1e-2, equal_nan=True)
        assert scale.state_dict() == twin_scale.state_dict()
    assert is_recorded(step)


def test_state_that_is_reassigned_is_read_where_it_is_now() -> None:
    model = net()
    captured = capture(lambda x: model(x))
    with torch.no_grad():
        for call in range(12):
            if call == 4:
                model[0].weight.data = torch.randn(32, 16, device="cuda")
            if call == 7:
                model[0].weight = nn.Parameter(torch.randn(32, 16, device="cuda"))
            if call == 9:
                model[3].load_state_dict({name: value * 2 for name, value in model[3].state_dict().items()})
            value = x()
            torch.testing.assert_close(captured(value), model(value))
    assert is_recorded(captured)


def test_slices_at_any_alignment_and_slices_that_overlap() -> None:
    def use(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(0.5)
        return soften(b, 0.5) - a

    captured, room = capture(use), torch.randn(4096, device="cuda")
    for call in range(14):
        a, b = (0, 1024) if call < 8 else (call, call + 3)
        shift = (0, 0, 0, 4, 1, 2, 8, 0)[call] if call < 8 else 0
        twin = room.clone()
        mine = [whole[at + shift : at + shift + 1024] for whole in (room, twin) for at in (a, b)]
        assert torch.equal(captured(*mine[:2]), use(*mine[2:])), call
        assert torch.equal(room, twin), call


def test_an_optimizer_that_counts_on_the_cpu_is_refused_and_left_alone() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = capture(training(model, optimizer))
    step(x(64, 16), x(64, 8))
    steps = [state["step"].clone() for state in optimizer.state.values()]
    with pytest.raises(treeplay.Refusal):
        step(x(64, 16), x(64, 8))
    assert all(torch.equal(state["step"], old) for state, old in zip(optimizer.state.values(), steps, strict=True))


def test_a_loss_that_keeps_its_graph_alive_between_calls() -> None:
    """The graph holds gradient accumulators of the caller's stream."""
    model, losses = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    captured = treeplay.jit(step, lower="capture")
    for _ in range(6):
        losses.append(captured(x()))
    assert torch.isfinite(torch.stack([loss.detach() for loss in losses])).all()
    assert losses[-1] < losses[0]
