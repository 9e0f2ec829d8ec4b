"""Life and death of what a program holds: freed when it is dropped, without the garbage collector; results outlive it."""

from __future__ import annotations

import gc
import pathlib
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same, training

CALLS = 5


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def make_net(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(device)


def inference(net: nn.Module) -> Any:
    return treeplay.jit(net.requires_grad_(False), lower="aten")


def function(net: nn.Module) -> Any:
    net.requires_grad_(False)
    return treeplay.jit(lambda x: net(x) * 2 - x, lower="aten")


def step(net: nn.Module) -> Any:
    run = training(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    return treeplay.jit(lambda x: run(x, x), lower="aten")


def differentiable(net: nn.Module) -> Any:
    return treeplay.jit(lambda x: net(x).square().mean(), lower="aten")


def opaque(net: nn.Module) -> Any:
    net.requires_grad_(False)
    return treeplay.jit(lambda x: net(x) - x, lower="capture")


def refused(net: nn.Module) -> Any:
    net.requires_grad_(False)
    return treeplay.jit(lambda x: net(x) if x.sum() > 0 else x, lower="aten")


KINDS = [inference, function, step, differentiable, opaque, refused]


def run(program: Any, device: str, *, is_recorded: bool = True) -> torch.Tensor:
    for call in range(CALLS):
        out = program(torch.full((4, 8), 1.0 + call, device=device))
        if out.requires_grad:
            out.backward()
    if is_recorded and hasattr(program, "statistics"):
        assert program.statistics().replays > 0
        launch = program.statistics().keys[0].recordings[0].launch
        assert device == "cpu" or launch.stage == "recorded"
    return out.detach()  # type: ignore[no-any-return]


def make_and_drop(make: Callable[[nn.Module], Any], device: str) -> list[Any]:
    net = make_net(device)
    program = make(net)
    run(program, device, is_recorded=make is not refused)
    return [weakref.ref(program), *map(weakref.ref, net.parameters())]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_T2_a_dropped_program_is_freed_without_the_garbage_collector(
    make: Callable[[nn.Module], Any], device: str, no_collector: None
) -> None:
    if device == "cuda" and make is differentiable:
        pytest.xfail("the gradients that its last backward wrote wait for the collector, as every class does")
    make_and_drop(make, device)  # what is made once for all programs
    gc.collect()
    in_use, tensors = [], []
    for _ in range(20 if device == "cuda" else 3):
        assert [reference for reference in make_and_drop(make, device) if reference() is not None] == []
        tensors.append(sum(type(found) in (torch.Tensor, nn.Parameter) for found in gc.get_objects()))
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            in_use.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert len(set(in_use)) <= 1
    assert len(set(tensors)) == 1


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_gradients_that_are_set_to_none_are_freed(where: str, device: str, no_collector: None) -> None:
    net = make_net(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def train(x: torch.Tensor) -> torch.Tensor:
        if where == "inside":
            optimizer.zero_grad(set_to_none=True)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    recorded = treeplay.jit(train, lower="aten")
    for call in range(CALLS):
        recorded(torch.full((4, 8), 1.0 + call, device=device))
        gradients = [weakref.ref(p.grad) for p in net.parameters()]
        optimizer.zero_grad(set_to_none=True)
        if device == "cuda" and recorded.statistics().replays:
            continue  # the next launch writes to the same memory, unless somebody else holds it: see below
        assert [reference for reference in gradients if reference() is not None] == []
    assert recorded.statistics().replays > 0


def drop(program: Any) -> None:
    """Nothing to do: the caller's reference is the last one."""


def reset(program: Any) -> None:
    program.reset()


def reset_all(program: Any) -> None:
    treeplay.reset()


def evict(program: Any) -> None:
    for rows in range(1, treeplay.settings.max_recordings_per_program + 2):
        program(torch.ones(rows, 8, device=next(iter(program.parameters())).device))


@pytest.mark.parametrize("end", [drop, reset, reset_all, evict], ids=lambda end: end.__name__)
def test_Tplus14_results_outlive_what_made_them(
    end: Callable[[Any], None], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(treeplay.settings, "max_recordings_per_program", 2)
    net = make_net(device).requires_grad_(False)
    program = treeplay.jit(net, lower="aten")
    kept = run(program, device)
    expected = net(torch.full((4, 8), float(CALLS), device=device)).clone()
    if end is evict:
        with pytest.warns(UserWarning, match="drops the least recently used"):
            evict(program)
    else:
        end(program)
    del program, net
    poison = [torch.full((4, 8), float("nan"), device=device) for _ in range(1_000)]
    assert_same(kept, expected)
    del poison


_AT_SHUTDOWN = """
import torch, treeplay
from torch import nn
device = "{device}"
net = nn.Linear(8, 8).to(device).requires_grad_(False)
class Last:
    def __del__(self):
        assert torch.equal(self.kept, self.expected)
        print("right")
program = treeplay.jit(lambda x: net(x) * 2 - x, lower="aten")
x = torch.ones(4, 8, device=device)
for _ in range(5):
    kept = program(x)
last = Last()
last.kept, last.expected = kept, (net(x) * 2 - x).clone()
"""


def test_Tplus14_results_outlive_the_interpreters_modules(device: str, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "at_shutdown.py"
    script.write_text(_AT_SHUTDOWN.format(device=device))
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stdout.strip(), found.stderr.strip()) == (0, "right", "")
