"""What was recorded in one thread is replayed in threads that have never called CUDA before, with inputs made elsewhere."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support import jit
from treeplay.backend.account import graph_reports
from treeplay.torch_compile import backend

pytestmark = pytest.mark.gpu

WIDTH = 32


def in_fresh_threads(work: Callable[[int], None], count: int = 4) -> None:
    """Run `work(number)` in threads of their own, one after another, then at once."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    for is_at_once in (False, True):
        threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
            if not is_at_once:
                thread.join(timeout=60)
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
    if errors:
        raise errors[0]


def inputs(count: int, device: str = "cuda") -> list[torch.Tensor]:
    """Whole numbers, each tensor at an address of its own."""
    return [torch.full((4, WIDTH), float(number), device=device) for number in range(count)]


def launch_of(program: Any) -> Any:
    return program.statistics().keys[0].recordings[-1].launch


@pytest.mark.parametrize("lower", ["aten", "inductor"])
def test_T38_fresh_threads_replay_with_tensors_that_were_made_elsewhere(lower: str) -> None:
    weight = torch.randint(-2, 3, (WIDTH, WIDTH), device="cuda").float()

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ weight) - 2 * x

    jitted, given = jit(program, lower=lower), inputs(16)
    expected = [program(x) for x in given]
    kept = [jitted(x) for x in given[:6]]
    assert launch_of(jitted).stage == "recorded"
    before = jitted.statistics().replays
    found: dict[int, list[torch.Tensor]] = {}

    def replay(number: int) -> None:
        found[number] = [jitted(x) for x in given[number:] + given[:number]]

    in_fresh_threads(replay)
    torch.cuda.synchronize()
    for number, results in found.items():
        for out, wanted in zip(results, expected[number:] + expected[:number], strict=True):
            assert torch.equal(out, wanted)
    assert all(map(torch.equal, kept, expected))
    assert jitted.statistics().replays == before + 8 * len(given)


def test_a_fresh_thread_moves_state_first_of_all() -> None:
    state = {"at": torch.ones(WIDTH, device="cuda")}

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * state["at"] - 1

    jitted, (x,) = jit(program, lower="aten"), inputs(1)
    for _ in range(4):
        jitted(x)
    assert launch_of(jitted).stage == "recorded"
    state["at"] = torch.full((WIDTH,), 3.0, device="cuda")
    moved_to = [state["at"]]
    x.fill_(5)

    def replay(number: int) -> None:
        assert torch.equal(jitted(x), torch.full_like(x, 14.0))

    in_fresh_threads(replay)
    assert moved_to


def test_a_backward_in_a_fresh_thread_replays() -> None:
    layer = torch.nn.Linear(WIDTH, WIDTH, device="cuda")
    compiled = torch.compile(layer, backend=backend)
    given = inputs(8)
    for x in given[:4]:
        compiled(x).sum().backward()
    layer.weight.grad = None
    for x in given:
        layer(x).sum().backward()
    expected, layer.weight.grad = layer.weight.grad, None

    def train(number: int) -> None:
        if number == 0 and layer.weight.grad is None:
            for x in given:
                compiled(x).sum().backward()

    in_fresh_threads(train, count=1)
    torch.testing.assert_close(layer.weight.grad, expected)
    for report in graph_reports()[-2:]:
        assert report.launch is not None and report.launch.stage == "recorded" and report.launch.launches >= len(given)


def test_compiled_inference_replays_in_fresh_threads() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x * 3 - 1, dim=1)

    compiled, given = torch.compile(program, backend=backend, fullgraph=True), inputs(8)
    expected = [program(x) for x in given]
    for x in given[:4]:
        compiled(x)

    def replay(number: int) -> None:
        for x, wanted in zip(given, expected, strict=True):
            assert torch.equal(compiled(x), wanted)

    in_fresh_threads(replay)
    launch = graph_reports()[-1].launch
    assert launch is not None and launch.stage == "recorded" and launch.launches >= 8 * len(given)


def test_an_explicit_graph_is_replayed_and_described_in_fresh_threads() -> None:
    x, out = torch.ones(WIDTH, device="cuda"), torch.zeros(WIDTH, device="cuda")
    graph = treeplay.graphs.Graph()
    with treeplay.graphs.graph(graph):
        out.mul_(2).add_(x)
    described: list[Any] = []

    def replay(number: int) -> None:
        described.append(graph.statistics())
        graph.replay()

    in_fresh_threads(replay)
    torch.cuda.synchronize()
    assert torch.equal(out, torch.full_like(out, 2.0**8 - 1)) and len(described) == 8


def test_a_graphed_callable_is_called_in_fresh_threads() -> None:
    layer = torch.nn.Linear(WIDTH, WIDTH, device="cuda").requires_grad_(False)
    (sample, *given) = inputs(6)
    expected = [layer(x) for x in given]
    graphed = treeplay.graphs.make_graphed_callables(layer.forward, (sample,))

    def replay(number: int) -> None:
        with torch.no_grad():
            for x, wanted in zip(given, expected, strict=True):
                torch.testing.assert_close(graphed(x).clone(), wanted)

    in_fresh_threads(replay, count=1)


@pytest.mark.parametrize("front", ["jit", "compile"])
def test_T38_two_streams_in_turn_for_a_hundred_rounds(front: str) -> None:
    """Nothing but treeplay makes a replay wait for the one before it, on the other stream."""
    state = torch.zeros(1 << 20, device="cuda")
    torch._dynamo.mark_static_address(state)

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):  # long enough for the next replay to come too early
            state.mul_(0.5).add_(x)
        return state * 2 - x

    run = (
        jit(program, lower="aten")
        if front == "jit"
        else torch.compile(program, backend=backend, options={"inner": "aten"})
    )
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    given = [torch.full((1 << 20,), float(number % 7), device="cuda") for number in range(100)]
    for x in given[:4]:
        run(x)
    torch.cuda.synchronize()
    state.zero_()
    found, before = [], torch.cuda.current_stream()
    torch.cuda.synchronize()
    for number, x in enumerate(given):
        stream = streams[number % 2]
        with torch.cuda.stream(stream):
            found.append(run(x)[::1000].clone())
            assert torch.cuda.current_stream() == stream
    assert torch.cuda.current_stream() == before
    torch.cuda.synchronize()
    launch = launch_of(run) if front == "jit" else graph_reports()[-1].launch
    assert launch.stage == "recorded" and launch.launches >= 100
    state.zero_()
    for number, (x, out) in enumerate(zip(given, found, strict=True)):
        assert torch.equal(out, program(x)[::1000]), f"round {number}"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_T38_tensors_of_two_devices_are_refused_and_right() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 - (y * 3).to(x.device)

    run = treeplay.jit(program, lower="aten")
    with pytest.warns(UserWarning, match="cuda:1"):
        for number in range(4):
            x, y = torch.full((3,), float(number), device="cuda:0"), torch.ones(3, device="cuda:1")
            assert torch.equal(run(x, y), program(x, y))
    assert run.statistics().replays == 0 and run.statistics().refusals == 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_T38_a_fresh_thread_stays_on_its_device() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 3 - 1

    jitted, given = jit(program, lower="aten"), inputs(8, "cuda:1")
    for x in given[:4]:
        jitted(x)
    assert launch_of(jitted).stage == "recorded"
    devices: list[int] = []

    def replay(number: int) -> None:
        for x in given:
            assert torch.equal(jitted(x), x * 3 - 1)
        devices.append(torch.cuda.current_device())

    in_fresh_threads(replay)
    assert set(devices) == {torch.cuda.current_device()} == {0}


WORK = {
    "cuBLAS": "x @ x.T - 2 * x",
    "cuDNN": "torch.nn.functional.conv2d(x[None, None], x[None, None, :3, :3]) - 2",
    "cuSOLVER": "torch.linalg.cholesky_ex(x @ x.T + 64 * torch.eye(32, device='cuda'))[0]",
    "cuFFT": "torch.fft.rfft(x).real - 2",
}
ELSEWHERE = """
from concurrent.futures import ThreadPoolExecutor
import torch
import treeplay

@treeplay.jit(lower="aten")
def program(x):
    return {work}

x = torch.randint(-2, 3, (32, 32), device="cuda").float()
with torch.no_grad():
    expected = {work}
    for _ in range(2):
        program(x)
pool = ThreadPoolExecutor(1)
for _ in range(4):
    assert torch.equal(pool.submit(torch.no_grad()(program), x).result(), expected), program.explain()
made = program.statistics()
assert made.keys[0].recordings[0].launch.stage == "recorded" and made.replays >= 2, program.explain()
"""


@pytest.mark.parametrize("library", WORK)
def test_T38_what_ran_in_one_thread_is_captured_in_another(library: str) -> None:
    """The first calls make a library's handle in this thread; the capture comes in one that has none."""
    code = ELSEWHERE.format(work=WORK[library])
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
