"""The saved block in whole programs: what a recorded forward leaves for its backward is one allocation at one address.

On the CPU the recordings are those of a GPU, with a tape where that has a CUDA graph.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import test_jit_users_gradients as users
from support import jit
from support.allocated import left_allocated
from support.compiled import compiled, new_reports
from support.taped_gpu import TAPE, capture_on_the_cpu
from treeplay.device.cuda.nodes.patch import Patcher
from treeplay.torch_seam.tensors import view_in_block
from treeplay.values.launch import LaunchFacts
from treeplay.wrap.aot.calls import block
from treeplay.wrap.aot.tracing import writes_inside

STEADY = 3
WIDTH = 16
FRONTS = pytest.mark.parametrize("front", ["jit", "backend"])


class Deep(nn.Module):
    """Layers, each of which keeps what it gives."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x * 0.5 - torch.tanh(layer(x))
        return x


@pytest.fixture(autouse=True)
def as_on_a_gpu(device: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None) -> None:
    if device == "cpu":
        capture_on_the_cpu(monkeypatch)
        monkeypatch.setattr(writes_inside, "is_costly", lambda target: True)


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def both(front: str, device: str, layers: int = 8) -> tuple[nn.Module, Any, nn.Module]:
    """A net, what calls it recorded, and its eager twin."""
    torch.manual_seed(4)
    net = Deep(layers).to(device)
    call = jit(net) if front == "jit" else compiled(net, dynamic=False)
    return net, call, copy.deepcopy(net)


def batch(number: int, device: str) -> torch.Tensor:
    return (torch.arange(4.0 * WIDTH, device=device).reshape(4, WIDTH) * (number + 1)).cos()


def check(net: nn.Module, twin: nn.Module) -> None:
    """Fails unless gradients are alike, and takes them away."""
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        near = {"rtol": 1e-3, "atol": 2e-4} if other.is_cuda else {}  # its convolutions round otherwise
        torch.testing.assert_close(one.grad, other.grad, **near)
        one.grad = other.grad = None


def allocations(work: Callable[[], Any], device: str) -> tuple[int, Any]:
    """How often memory for tensors was taken, and what `work` returned. On the CPU what a tape takes counts as nothing: a
    CUDA graph takes none."""
    if device == "cuda":
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        out = work()
        return torch.cuda.memory_stats()["allocation.all.allocated"] - before, out
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        out = work()
    events = found.profiler.kineto_results.events()
    taped = [(event.start_ns(), event.start_ns() + event.duration_ns()) for event in events if event.name() == TAPE]
    taken = [event.start_ns() for event in events if event.name() == "[memory]" and event.nbytes() > 0]
    return sum(not any(begin <= at <= end for begin, end in taped) for at in taken), out


def launches() -> list[LaunchFacts]:
    """Those of the forward and of the backward, which have been recorded."""
    found = [report.launch for report in new_reports() if report.direction != "inference" and report.launch is not None]
    assert len(found) == 2 and all(launch.stage == "recorded" for launch in found), found
    return found


@FRONTS
def test_T36_a_forward_of_fifty_layers_makes_its_results_and_a_block(front: str, device: str) -> None:
    net, call, twin = both(front, device, layers=50)
    for number in range(6):
        x = batch(number, device)
        count, result = allocations(lambda x=x: call(x), device)
        if number >= STEADY:
            assert count <= 1 + 2
            kept = result.grad_fn.saved_tensors
            assert sum(value.dtype is torch.uint8 for value in kept) == 1 and len(kept) <= 50 + 3
        result.square().sum().backward()
        twin(x).square().sum().backward()
        check(net, twin)
    assert all(launch.captures == 1 for launch in launches())


class Normed(nn.Module):
    """Convolutions with batch norms, each of which writes three buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(8))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(-1, 4, 4, 4)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x * 0.5 - torch.tanh(norm(layer(x)))
        return x


@FRONTS
def test_statistics_that_a_forward_writes_are_no_results_of_it(front: str, device: str) -> None:
    torch.manual_seed(4)
    net = Normed().to(device)
    twin, call = copy.deepcopy(net), jit(net) if front == "jit" else compiled(net, dynamic=False)
    for number in range(6):
        x = batch(number, device)
        count, result = allocations(lambda x=x: call(x), device)
        result.square().sum().backward()
        twin(x).square().sum().backward()
        check(net, twin)
        for (name, one), other in zip(net.named_buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(one, other, msg=f"{name} in round {number}")
        assert count <= 1 + 2 or number < STEADY
    assert all(launch.captures == 1 for launch in launches())


@FRONTS
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "in reverse"])
def test_T36_two_forwards_before_their_backwards(front: str, order: tuple[int, int], device: str) -> None:
    net, call, twin = both(front, device)
    captures = []
    for number in range(6):
        given = [batch(2 * number + part, device) for part in range(2)]
        ours, eagers = ([(one(x) - part).square().sum() for part, x in enumerate(given)] for one in (call, twin))
        for part in order:
            ours[part].backward()
            eagers[part].backward()
            torch.testing.assert_close(ours[part], eagers[part])
        check(net, twin)
        if number >= STEADY:
            captures.append([launch.captures for launch in launches()])
    assert captures == [[1, 1]] * 3


@FRONTS
def test_T36_an_address_that_is_the_same_again_is_not_patched(
    front: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a loop each step is given the memory of the one before."""
    if device == "cpu":
        pytest.skip("the allocator of a CPU gives any memory")
    moves: list[int] = []
    mover = Patcher.mover

    def counting(patcher: Patcher, *rows: Any) -> Any:
        move = mover(patcher, *rows)

        def counted(*addresses: int) -> None:
            moves.append(len(rows))
            move(*addresses)

        return counted

    monkeypatch.setattr(Patcher, "mover", counting)
    net, call, _ = both(front, device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x = batch(1, device)
    for number in range(12):
        if number == 8:
            assert moves
            moves.clear()
        call(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert moves == [] and all(launch.launches >= 8 for launch in launches())


@FRONTS
def test_T36_a_forward_that_is_dropped_gives_its_memory_back_at_once(
    front: str, device: str, no_collection: None
) -> None:
    _, call, _ = both(front, device)
    for number in range(4):
        call(batch(number, device)).sum().backward()
    for number in range(4, 8):
        left, _ = left_allocated(lambda number=number: call(batch(number, device)).sum().item(), device)
        assert left <= 0
    assert all(launch.captures == 1 for launch in launches())


@FRONTS
def test_T36_a_graph_that_is_kept_keeps_the_block_until_its_last_backward(
    front: str, device: str, no_collection: None
) -> None:
    net, call, twin = both(front, device)

    def two_backwards(one: Any, number: int) -> None:
        loss = one(batch(number, device)).square().sum()
        loss.backward(retain_graph=True)
        for parameter in net.parameters() if one is call else twin.parameters():
            parameter.grad.mul_(0.5).sub_(1)  # what it reads for the second backward is no gradient
        (loss * 3).backward()

    for number in range(6):
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for parameter in twin.parameters():
            parameter.grad = torch.zeros_like(parameter)
        left, _ = left_allocated(lambda number=number: two_backwards(call, number), device)
        two_backwards(twin, number)
        for one, other in zip(net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
        assert number < STEADY or left <= 0, left


@FRONTS
def test_T36_a_block_that_cannot_be_had_costs_a_call_its_launch_and_nothing_else(
    front: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, call, twin = both(front, device)
    fails: list[bool] = []
    from treeplay.torch_seam import allocator

    make = allocator.empty_on_gpu()

    def empty(shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        if fails and dtype is torch.uint8:
            raise torch.OutOfMemoryError("no room for a block")
        return make(shape, stride, dtype)

    monkeypatch.setattr(allocator, "empty_on_gpu", lambda: empty)
    for number in range(8):
        fails[:] = [True] if number in (4, 6) else []
        x = batch(number, device)
        (call(x) - 1).square().sum().backward()
        (twin(x) - 1).square().sum().backward()
        check(net, twin)
    forward = next(report for report in new_reports() if report.direction == "forward")
    assert forward.not_replayed["out of memory"] == 2 and all(launch.captures == 1 for launch in launches())


class TwoResults(Deep):
    """As many models do, it also returns what its layers give, and a loss uses one of the two."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        hidden = super().forward(x)
        return hidden * 2 - x, hidden


@FRONTS
def test_T36_the_backward_of_one_of_two_results_takes_the_block(
    front: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(4)
    net = TwoResults(layers=8).to(device)
    twin, call = copy.deepcopy(net), jit(net) if front == "jit" else compiled(net, dynamic=False)
    opened = []
    monkeypatch.setattr(block, "view_in_block", lambda *args: opened.append(args) or view_in_block(*args))
    for number in range(9):
        x = batch(number, device)
        opened.clear()
        call(x)[0].square().sum().backward()
        assert not opened or number <= STEADY, "each saved value became a tensor"
        twin(x)[0].square().sum().backward()
        check(net, twin)
    launches()


@FRONTS
def test_T36_results_and_gradients_share_no_memory(front: str, device: str) -> None:
    net, call, _ = both(front, device)
    kept: list[Any] = []
    for number in range(6):
        result = call(batch(number, device))
        result.square().sum().backward()
        kept.append([result, *(parameter.grad for parameter in net.parameters())])
        for parameter in net.parameters():
            parameter.grad = None
    memory = [one.untyped_storage().data_ptr() for step in kept for one in step]
    assert len(set(memory)) == len(memory)
    assert all(one.untyped_storage().nbytes() == one.nbytes for step in kept for one in step)


@FRONTS
@pytest.mark.parametrize("name", [*users.BACKWARDS, *users.CHECKPOINTS])
def test_Tplus4_backwards_of_any_kind_with_a_block(name: str, front: str, device: str) -> None:
    """As a GPU records them, also on the CPU."""
    sides = users.sides(front, device)
    left = users.play({**users.BACKWARDS, **users.CHECKPOINTS}[name], sides, device)
    assert max(left[1:]) <= 0, left
    found = [report.launch for report in new_reports() if report.outcome != "compiled"]
    if front == "backend" or name not in users.CHECKPOINTS:
        assert found and all(launch is not None and launch.stage == "recorded" for launch in found)


@FRONTS
@pytest.mark.parametrize("name", [name for name in users.GRADIENTS if name != "all_reduced"])
def test_Tplus3_gradients_are_the_users_with_a_block(name: str, front: str, device: str) -> None:
    sides = users.sides(front, device)
    for number in range(users.ROUNDS):
        found, expected = (users.GRADIENTS[name](side, number, device) for side in sides)
        users.check(*sides, (found, expected), number)
    users.check_recorded(sides[0], front, device)
