"""A default device around a call is part of its key: the program is recorded there as anywhere.

On the CPU the device is `meta`, and programs say where they make what they compute with: what the package makes for itself
must not follow the default.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support import assert_same, jit, training

GPU = pytest.param(
    "cuda",
    marks=pytest.mark.gpu,
)
DEVICES = ["meta", GPU]
BOTH = [
    pytest.param("meta", "aten"),
    pytest.param("meta", "inductor", marks=pytest.mark.soak),
    *(pytest.param("cuda", lower, marks=GPU.marks) for lower in ("aten", "inductor")),
]


@contextlib.contextmanager
def default(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def where(device: str) -> str:
    """Where a program computes under a default device."""
    return "cpu" if device == "meta" else device


def check_recorded(program: Any, *, replays: int) -> None:
    """That a program was recorded, and launched so often."""
    (key,) = (key for key in program.statistics().keys if key.recordings)
    launch = key.recordings[-1].launch
    assert key.recordings[-1].replays == replays, program.explain()
    assert launch.stage == ("bound" if launch.device == "cpu" else "recorded"), program.explain()


def warm_ups(device: str) -> int:
    return 1 if device == "cuda" else 0


@pytest.mark.parametrize(("device", "lower"), BOTH)
@pytest.mark.parametrize("around", [torch.device, default])
def test_inference_is_recorded(device: str, around: Callable[[str], Any], lower: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(where(device)).eval()
    jitted = jit(model, lower=lower)
    with torch.no_grad(), around(device):
        for _ in range(5):
            x = torch.randn(2, 3, device=where(device))
            torch.testing.assert_close(jitted(x), model(x), rtol=1e-5, atol=1e-6)
    check_recorded(jitted, replays=4 - warm_ups(device))


@pytest.mark.parametrize(("device", "lower"), BOTH)
def test_a_whole_step_is_recorded(device: str, lower: str) -> None:
    if device == "meta" and torch.__version__ < (2, 13):
        pytest.skip("this torch's AdamW counts on the default device, and fails in eager")
    model = nn.Linear(3, 2).to(where(device))
    twin = copy.deepcopy(model)
    pair = [torch.optim.AdamW(net.parameters(), lr=0.1) for net in (model, twin)]
    ours, theirs = jit(training(model, pair[0]), lower=lower), training(twin, pair[1])
    with default(device):
        for call in range(6):
            x, y = torch.randn(4, 3, device=where(device)), torch.randn(4, 2, device=where(device))
            pair[0].param_groups[0]["lr"] = pair[1].param_groups[0]["lr"] = 0.1 / (call + 1)
            torch.testing.assert_close(ours(x, y), theirs(x, y), rtol=1e-4, atol=1e-5)
    for mine, its in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
    check_recorded(ours, replays=5 - warm_ups(device))


@pytest.mark.parametrize(("device", "lower"), BOTH)
def test_a_program_that_the_caller_differentiates_is_recorded(device: str, lower: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(where(device))
    twin = copy.deepcopy(model)
    jitted = jit(model, lower=lower)
    with torch.device(device):
        for call in range(5):
            x = torch.randn(2, 3, device=where(device)) + call
            for net in (jitted, twin):
                net(x).pow(2).sum().backward()
    for mine, its in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-4, atol=1e-5)
    check_recorded(jitted, replays=4 - warm_ups(device))


@pytest.mark.parametrize("device", DEVICES)
def test_a_program_recorded_as_it_runs(device: str) -> None:
    total = torch.ones(2, device=where(device))

    def add(x: torch.Tensor) -> torch.Tensor:
        return (total.mul_(2).add_(x) - 1).clone()

    twin = total.clone()
    jitted = jit(add, lower="capture")
    with default(device):
        for call in range(5):
            x = torch.full((2,), float(call), device=where(device))
            assert_same(jitted(x), twin.mul_(2).add_(x) - 1)
    assert_same(total, twin)
    assert jitted.statistics().recordings == 1


@pytest.mark.gpu
def test_a_program_that_names_no_device_computes_on_the_default() -> None:
    jitted = jit(lambda: torch.arange(4.0) * 3 - torch.ones(4))
    for _ in range(3):
        assert jitted().device.type == "cpu"
    for _ in range(2):
        with default("cuda"):
            for _ in range(4):
                found = jitted()
                assert found.device.type == "cuda" and found.tolist() == [-1.0, 2.0, 5.0, 8.0]
        assert jitted().device.type == "cpu"
    statistics = jitted.statistics()
    assert (statistics.recordings, statistics.replays) == (2, 4 + 6)
    assert statistics.not_replayed == {"observed": 2, "warm-up": 1}


def test_each_default_device_has_a_recording_and_going_back_finds_it() -> None:
    jitted = jit(lambda x: (x * 3 - 1, torch.get_default_device().type))
    for _ in range(2):
        for device in ("cpu", "meta"):
            with torch.device(device):
                for call in range(3):
                    x = torch.full((2,), float(call), device="cpu")
                    found = jitted(x)
                    assert_same(found[0], x * 3 - 1)
                    assert found[1] == device
    statistics = jitted.statistics()
    assert (statistics.recordings, statistics.replays, statistics.not_replayed) == (2, 10, {"observed": 2})
    assert [str(item) for item in statistics.keys[1].differs] == [
        "default device: device(type='meta'), recorded with None"
    ]


def test_a_default_device_set_between_two_calls_is_not_missed() -> None:
    jitted = jit(lambda x: x + torch.zeros(2, device=torch.get_default_device()), on_refusal="eager")
    for _ in range(3):
        jitted(torch.ones(2))
    with default("meta"):
        assert jitted(torch.ones(2, device="meta")).device.type == "meta"
    assert jitted(torch.ones(2)).device.type == "cpu"


def test_a_default_device_inside_the_program_is_followed() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.device("cpu"):
            return x * 2 - torch.ones(2)

    jitted = jit(program)
    with default("meta"):
        for call in range(4):
            x = torch.full((2,), float(call), device="cpu")
            assert_same(jitted(x), x * 2 - 1)
    check_recorded(jitted, replays=3)


def test_a_users_mode_inside_a_default_device_sees_each_operator() -> None:
    class Seen(torch.overrides.TorchFunctionMode):
        names: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    jitted, x = jit(lambda x: F.relu(x) - 1), torch.ones(2)
    with default("meta"):
        for _ in range(3):
            jitted(x)
        with Seen():
            jitted(x)
    assert "relu" in Seen.names
    assert jitted.statistics().not_replayed == {"observed": 1, "under the mode Seen": 1}


def test_the_backend_under_a_default_device() -> None:
    from treeplay.torch_compile import compile_graph

    graph = torch.fx.symbolic_trace(lambda x, w: ((x @ w).sin() * 2,))
    w = torch.randn(3, 3, requires_grad=True)
    with default("meta"):
        call = compile_graph(graph, [torch.randn(2, 3, device="cpu"), w], inner="aten")
        for _ in range(3):
            x = torch.randn(2, 3, device="cpu")
            (found,) = call(x, w)
            (gradient,) = torch.autograd.grad(found.sum(), w)
            (expected,) = torch.autograd.grad(((x @ w).sin() * 2).sum(), w)
            torch.testing.assert_close(gradient, expected)
