"""Life and death of what a program holds: freed when it is dropped, without the garbage collector; results outlive it."""

from __future__ import annotations

import contextlib
import gc
import pathlib
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same, training
from support.recordings import on_a_tape
from treeplay.backend.account import graph_reports
from treeplay.torch_compile import compile_graph
from treeplay.tree.tiers import compile_thread

CALLS = 5


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what was there before is looked through no more
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


def counting(net: nn.Module) -> Any:
    """One whose count is an input once a trace was refused for it."""
    net.requires_grad_(False)
    counts = SimpleNamespace(calls=0)

    def program(x: torch.Tensor) -> torch.Tensor:
        counts.calls += 1
        return net(x) * counts.calls - x

    return treeplay.jit(program, lower="aten")


def opaque(net: nn.Module) -> Any:
    net.requires_grad_(False)
    return treeplay.jit(lambda x: net(x) - x, lower="capture")


def refused(net: nn.Module) -> Any:
    net.requires_grad_(False)
    return treeplay.jit(lambda x: net(x) if x.sum() > 0 else x, lower="aten")


def compiled(net: nn.Module) -> Any:
    """A graph that is given its parameters: one that has them would keep them itself, as every graph is a cycle."""
    weight, bias = net[0].weight, net[0].bias  # type: ignore[index]

    def program(x: Any, weight: Any, bias: Any) -> Any:
        return ((x @ weight - bias).tanh().square().mean(),)

    x = torch.ones(4, 8, device=weight.device)
    graph = compile_graph(torch.fx.symbolic_trace(program), [x, weight, bias], options={"inner": "aten"})
    return lambda x: graph(x, weight, bias)[0]


def compiled_inference(net: nn.Module) -> Any:
    return compiled(net.requires_grad_(False))


def graphed(net: nn.Module) -> Any:
    x = torch.ones(4, 8, device=next(net.parameters()).device)
    return treeplay.graphs.make_graphed_callables(nn.Sequential(net, Mean()), (x,))


def graphed_function(net: nn.Module) -> Any:
    x = torch.ones(4, 8, device=next(net.parameters()).device)
    return treeplay.graphs.make_graphed_callables(lambda x: net(x).square().mean(), (x,))


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()


JITTED = [inference, function, step, differentiable, counting, opaque, refused]
KINDS = [*JITTED, compiled, compiled_inference, graphed, graphed_function]


def run(program: Any, device: str) -> torch.Tensor:
    for call in range(CALLS):
        out = program(torch.full((4, 8), 1.0 + call, device=device))
        if out.requires_grad:
            out.backward()
    return out.detach()  # type: ignore[no-any-return]


def assert_recorded(make: Callable[[nn.Module], Any], program: Any, device: str) -> None:
    if make in JITTED:
        launches = [program.statistics().keys[0].recordings[0].launch]
    elif make in (compiled, compiled_inference):
        found = graph_reports()
        launches = [report.launch for report in found if report.graph_id == found[-1].graph_id]
        assert len(launches) == (2 if make is compiled else 1)
    else:
        call = program.forward if isinstance(program, nn.Module) else program
        assert call.statistics().replays == CALLS and call.statistics().eager_calls == 0
        return
    assert device == "cpu" or {launch.stage for launch in launches} == {"recorded"}


def make_and_drop(make: Callable[[nn.Module], Any], device: str) -> list[Any]:
    net = make_net(device)
    program = make(net)
    run(program, device)
    if make is not refused:
        assert_recorded(make, program, device)
    return [weakref.ref(program), *map(weakref.ref, net.parameters())]


def held() -> Counter[str]:
    """What is alive of tensors, and of what records, launches and replays."""
    kinds = (type(found) for found in gc.get_objects())
    ours = (
        "treeplay.device",
        "treeplay.graphs",
        "treeplay.backend.recording.replayed",
        "treeplay.backend.recording.boxing",
        "treeplay.tree",
    )
    return Counter(
        f"{kind.__module__}.{kind.__qualname__}"
        for kind in kinds
        if kind in (torch.Tensor, nn.Parameter) or str(kind.__dict__.get("__module__", "")).startswith(ours)
    )


class Settle:
    """Waits until autograd's thread of the device has let go of its last node, which it does after `backward` returns."""

    def __init__(self, device: str) -> None:
        self._leaf = torch.zeros((), device=device, requires_grad=True)
        self()  # memory of its own, once

    def __call__(self) -> None:
        self._leaf.backward()


def blocks() -> tuple[int, Counter[int]]:
    """Bytes that the allocator has from the GPU, and how many blocks of each size are in use."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    found = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    return torch.cuda.memory_reserved(), Counter(item["size"] for item in found if item["state"] == "active_allocated")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_T2_what_is_dropped_is_freed_without_the_garbage_collector(
    make: Callable[[nn.Module], Any], device: str, monkeypatch: pytest.MonkeyPatch, no_collector: None
) -> None:
    on_a_tape(device, monkeypatch)
    settle = Settle(device)
    # What is made once: kernels, workspaces, contexts of autograd's threads.
    for _ in range(3 if device == "cuda" else 1):
        make_and_drop(make, device)
    gc.collect()
    in_use, alive = [], []
    for _ in range(20 if device == "cuda" else 2):
        references = make_and_drop(make, device)
        settle()
        assert [reference for reference in references if reference() is not None] == []
        alive.append(held())
        in_use.append(blocks() if device == "cuda" else (0, {}))
    assert alive == alive[:1] * len(alive)
    assert in_use == in_use[:1] * len(in_use)


@pytest.mark.parametrize("who", ["another thread", "this thread"])
def test_a_program_that_is_dropped_while_somebody_is_at_its_recordings_is_freed_after_that(who: str) -> None:
    """As the thread that compiles is, or a thread in the middle of which garbage is collected."""
    weight = torch.ones(3)
    jitted = treeplay.jit(lambda x: x * weight - 1, lower="aten")
    for _ in range(3):
        jitted(torch.ones(3))
    (recording,) = (recording for entry in jitted._manager.cache.table for recording in entry.recordings)
    lock, left, taken = jitted._lock, threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            left.wait(30)

    with lock if who == "this thread" else contextlib.nullcontext():
        holder = threading.Thread(target=hold)
        if who == "another thread":
            holder.start()
            assert taken.wait(30)
        del jitted
        assert not recording.is_dropped and recording.signature.guarded.holds()
    left.set()
    if holder.ident is not None:
        holder.join()
    assert compile_thread.wait(30) and recording.is_dropped


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
