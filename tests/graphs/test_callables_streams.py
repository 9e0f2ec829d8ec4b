"""Streams of the program's own inside of a recorded callable, and streams that calls come from."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

from treeplay.errors import CaptureFailed
from treeplay.graphs import make_graphed_callables
from treeplay.observe import counters

pytestmark = pytest.mark.gpu


class TwoBranches(nn.Module):
    """One branch on a stream of its own. `forks` and `joins`: what the program does itself; eager needs both.

    One that does not join returns both branches: whoever called it may read them only after a wait.
    """

    def __init__(self, *, forks: bool = True, joins: bool = True, waits: bool = False) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.stream = torch.cuda.Stream()
        self.forks, self.joins, self.waits = forks, joins, waits

    def __deepcopy__(self, memo: dict) -> TwoBranches:
        twin = TwoBranches().cuda()
        twin.load_state_dict(self.state_dict())
        return twin

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        current = torch.cuda.current_stream()
        if self.forks:
            self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            right = self.right(x).tanh()
        if self.waits:
            self.stream.synchronize()
        left = self.left(x) * 2
        if not self.joins:
            return left, right
        current.wait_stream(self.stream)
        return left - right


@pytest.mark.parametrize("forks", [True, False])
@pytest.mark.parametrize("joins", [True, False])
def test_Gplus6_own_streams_are_forked_and_joined(forks: bool, joins: bool) -> None:
    module = TwoBranches(forks=forks, joins=joins).cuda()
    twin = copy.deepcopy(module)  # which forks and joins
    make_graphed_callables(module, (torch.randn(4, 8, device="cuda", requires_grad=True),))
    for _ in range(5):
        x = torch.randn(4, 8, device="cuda", requires_grad=True)
        y = x.detach().clone().requires_grad_()
        found, expected = module(x), twin(y)
        if not joins:
            found = found[0] - found[1]
        torch.testing.assert_close(found, expected)
        found.pow(2).sum().backward()
        expected.pow(2).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    for a, b in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert module.forward.statistics().replays == 5


def test_Gplus6_what_cannot_be_joined_runs_eagerly_and_is_counted() -> None:
    module = TwoBranches(waits=True).cuda()
    twin, other = copy.deepcopy(module), nn.Linear(8, 8).cuda()
    before = counters["graphed callables"]["not recorded"]
    with pytest.warns(UserWarning, match="runs TwoBranches unrecorded: it uses 1 streams of its own"):
        make_graphed_callables(
            (other, module),
            ((torch.randn(4, 8, device="cuda"),), (torch.randn(4, 8, device="cuda", requires_grad=True),)),
        )
    assert counters["graphed callables"]["not recorded"] == before + 1
    for _ in range(3):
        x = torch.randn(4, 8, device="cuda")
        torch.testing.assert_close(module(other(x)), twin(other(x)))
        module(other(x)).sum().backward()
    statistics = module.forward.statistics()
    assert (statistics.replays, statistics.eager_calls) == (0, 6)
    assert "streams of its own" in statistics.eager_because[0][0]
    assert other.forward.statistics().replays == 9


def test_a_synchronisation_without_own_streams_is_an_error() -> None:
    def waits(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.cuda.current_stream().synchronize()
        return y

    stream = torch.cuda.current_stream()
    with pytest.raises(CaptureFailed):
        make_graphed_callables(waits, (torch.ones(3, device="cuda"),))
    assert torch.cuda.current_stream() == stream
    assert make_graphed_callables(torch.sin, (torch.ones(3, device="cuda"),))(torch.zeros(3, device="cuda")).sum() == 0


def test_calls_from_several_streams_in_turn() -> None:
    module = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512)).cuda()
    twin = copy.deepcopy(module)
    make_graphed_callables(module, (torch.randn(256, 512, device="cuda"),))
    streams = [torch.cuda.Stream() for _ in range(3)]
    inputs = [torch.randn(256, 512, device="cuda") for _ in range(30)]
    torch.cuda.synchronize()
    found = []
    for index, x in enumerate(inputs):
        with torch.cuda.stream(streams[index % 3]), torch.no_grad():
            found.append(module(x))
    torch.cuda.synchronize()
    for x, out in zip(inputs, found, strict=True):
        torch.testing.assert_close(out, twin(x).detach(), rtol=1e-4, atol=1e-4)


def test_a_backward_on_another_stream_than_its_call() -> None:
    module = nn.Linear(64, 64).cuda()
    twin = copy.deepcopy(module)
    make_graphed_callables(module, (torch.randn(32, 64, device="cuda"),))
    side = torch.cuda.Stream()
    for _ in range(3):
        x = torch.randn(32, 64, device="cuda")
        loss, expected = module(x).pow(2).sum(), twin(x).pow(2).sum()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss.backward()
        torch.cuda.current_stream().wait_stream(side)
        expected.backward()
    torch.testing.assert_close(module.weight.grad, twin.weight.grad, rtol=1e-4, atol=1e-3)


def test_G27_chained_modules_reuse_memory() -> None:
    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            big = x.expand(2**20, 16) * 1.5
            return (big * big - big).mean(0)

    def reserved(count: int) -> int:
        gc.collect()  # what earlier tests left behind
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        modules = tuple(Wide() for _ in range(count))
        with torch.no_grad():
            make_graphed_callables(modules, tuple((torch.ones(16, device="cuda"),) for _ in modules))
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved() - before

    assert reserved(3) <= 1.3 * reserved(1)
