"""Whatever fails while a callable is wrapped, the process is as it was, and the next wrapping works."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from support import assert_same
from treeplay.errors import UsageError
from treeplay.graphs import is_current_stream_capturing, make_graphed_callables
from treeplay.graphs import record as record_module


class FailsAt(nn.Module):
    """Raises in run number `at`, after it has drawn random numbers and written to its buffers."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(()))
        self.at, self.error, self.runs = at, error, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        out = nn.functional.dropout(self.norm(self.layer(x)), 0.5)
        self.seen.add_(1)
        if self.runs == self.at:
            raise self.error("in the body")
        return out


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, torch.OutOfMemoryError])
@pytest.mark.parametrize("at", [1, 3, 4])
def test_an_exception_in_any_run_leaves_no_mark(dev: str, at: int, error: type[BaseException]) -> None:
    good, bad = nn.Linear(4, 4).to(dev), FailsAt(at, error).to(dev)
    bad.layer.weight.register_hook(lambda gradient: gradient * 2)
    before = copy.deepcopy(bad.state_dict())
    samples = ((torch.randn(3, 4, device=dev),), (torch.randn(3, 4, device=dev, requires_grad=True),))
    values = [sample[0].detach().clone() for sample in samples]
    state = torch.get_rng_state()
    stream = torch.cuda.current_stream() if dev == "cuda" else None
    with pytest.raises(error, match="in the body"):
        make_graphed_callables((good, bad), samples)
    assert not is_current_stream_capturing()
    assert stream is None or torch.cuda.current_stream() == stream
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert_same(dict(bad.state_dict()), dict(before))
    assert_same([sample[0].detach() for sample in samples], values)
    assert "forward" not in vars(good)
    assert "forward" not in vars(bad)
    assert len(bad.layer.weight._backward_hooks) == 1
    assert all(parameter.grad is None for parameter in bad.parameters())
    bad.at = 0
    make_graphed_callables((good, bad), samples)
    bad(good(torch.randn(3, 4, device=dev))).sum().backward()
    assert good.weight.grad is not None


def test_a_failure_while_a_backward_is_recorded_leaves_no_mark(dev: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise UsageError("broken")

    module = nn.Linear(4, 4).to(dev)
    x = torch.randn(3, 4, device=dev)
    with monkeypatch.context() as patch, pytest.raises(UsageError, match="broken"):
        patch.setattr(record_module, "_take_backward", broken)
        make_graphed_callables(module, (x,))
    assert "forward" not in vars(module)
    make_graphed_callables(module, (x,))
    assert module(x).requires_grad


def test_a_failed_recording_at_a_call_leaves_the_others(dev: str) -> None:
    def picky(x: torch.Tensor, scale: int = 1) -> torch.Tensor:
        if scale == 3:
            raise ValueError("three")
        return x * scale

    graphed = make_graphed_callables(picky, (torch.ones(2, device=dev),))
    x = torch.full((2,), 5.0, device=dev)
    for _ in range(2):
        with pytest.raises(ValueError, match="three"):
            graphed(x, scale=3)
        assert graphed(x, scale=2).eq(10).all()
        assert graphed(x).eq(5).all()
    assert graphed.statistics().recordings == 2


def test_wrapping_can_be_undone(dev: str) -> None:
    module = nn.Linear(4, 4).to(dev)
    make_graphed_callables(module, (torch.randn(3, 4, device=dev),))
    del module.forward
    assert module(torch.randn(7, 4, device=dev)).shape == (7, 4)


@pytest.mark.gpu
def test_memory_goes_back_when_the_callable_does() -> None:
    def wide(x: torch.Tensor) -> torch.Tensor:
        return (x.expand(2**20, 16) * 1.5).exp().mean(0)

    def reserved() -> int:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    x = torch.ones(16, device="cuda", requires_grad=True)
    wide(x).sum().backward()
    before = reserved()
    graphed = make_graphed_callables(wide, (torch.ones(16, device="cuda", requires_grad=True),))
    graphed(x).sum().backward()
    assert reserved() > before + 2**25
    del graphed
    assert reserved() <= before + 2**21


@pytest.mark.gpu
def test_a_recording_that_is_garbage_does_not_break_the_next_capture() -> None:
    def littering(x: torch.Tensor) -> torch.Tensor:
        for _ in range(1000):  # enough objects for the collector to run by itself
            [].append([{} for _ in range(10)])
        return x * 2

    for _ in range(3):
        module = nn.Linear(4, 4).cuda()
        make_graphed_callables(module, (torch.randn(3, 4, device="cuda"),))  # module and recording hold each other
        del module
        assert (
            make_graphed_callables(littering, (torch.ones(2, device="cuda"),))(torch.ones(2, device="cuda")).sum() == 4
        )
