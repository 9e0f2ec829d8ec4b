"""What recordings share on a device is made by the first capture there: not by import, `jit`, compiling or asking."""

from __future__ import annotations

import pytest

from support.interpreters import FreshPython

_ASKED = """
import sys, threading
import torch
import treeplay
from treeplay.torch_compile import backend

device = sys.argv[1]
weight = torch.ones(4)

@treeplay.jit
def program(x):
    return x * weight - 1

module = treeplay.jit(torch.nn.Linear(4, 4))
compiled = torch.compile(lambda x: x * 2 - 1, backend=backend, options={"inner": "aten"})
for one in (program, module):
    one.statistics(), one.explain(), one.reset()
treeplay.graph_reports(), treeplay.observe.counters, treeplay.settings.memory_budget_bytes
treeplay.reset()
"""

_NOTHING = """
def shared():
    lanes = sys.modules.get("treeplay.device.cuda.lane")
    spare = sys.modules.get("treeplay.device.cuda.capturing.workspaces")
    return {
        "context": torch.cuda.is_initialized(),
        "threads": threading.active_count() - 1,
        "pools": [at for at, lane in lanes._lanes.items() if lane.scratch.nbytes or lane._pool is not None] if lanes else [],
        "workspaces": len(spare.workspaces._spare) if spare else 0,
    }

NOTHING = {"context": False, "threads": 0, "pools": [], "workspaces": 0}
assert shared() == NOTHING, shared()
"""


_ON_THE_CPU = """
treeplay.settings.tiers = "exact"
run = treeplay.jit(lambda x: x * weight - 1, lower="aten")
for call in range(4):
    x = torch.full((3, 4), float(call))
    assert torch.equal(run(x), x * weight - 1) and torch.equal(compiled(x), x * 2 - 1)
assert run.statistics().replays == 3
assert {**shared(), "threads": 0} == NOTHING, shared()  # Dynamo may have threads of its own
assert not any(name.startswith("treeplay.device.cuda") for name in sys.modules)
"""


def test_T1_nothing_is_made_by_import_jit_compile_and_asking_nor_by_recordings_on_the_cpu(
    fresh_python: FreshPython,
) -> None:
    fresh_python(_ASKED + _NOTHING + _ON_THE_CPU, "cpu")


_ON_A_GPU = """
treeplay.settings.tiers = "exact"
weight = weight.cuda()
run = treeplay.jit(lambda x: x * weight - 1, lower="aten")
for call in range(4):
    x = torch.full((3, 4), float(call), device="cuda")
    assert torch.equal(run(x), x * weight - 1)
    if call < 2:  # observed, and run as it is
        assert shared()["pools"] == [] and shared()["workspaces"] == 0, (call, shared())
assert shared()["pools"] == [0], shared()
assert run.statistics().keys[0].recordings[0].launch.stage == "recorded"
"""


@pytest.mark.gpu
def test_T1_the_first_capture_makes_the_pool(fresh_python: FreshPython) -> None:
    fresh_python(_ASKED + _NOTHING + _ON_A_GPU, "cuda")


_ON_THE_SECOND = """
from treeplay.torch_seam.allocator import has_context
treeplay.settings.tiers = "exact"
torch.cuda.set_device(1)
weight = torch.ones(4, device="cuda:1")
run = treeplay.jit(lambda x: x * weight - 1, lower="aten")
net = torch.nn.Linear(4, 4, device="cuda:1")
trained = torch.compile(net, backend=backend, options={"inner": "aten"})
for call in range(5):
    x = torch.full((3, 4), float(call), device="cuda:1")
    assert torch.equal(run(x), x * weight - 1)
    trained(x).sum().backward()
assert run.statistics().keys[0].recordings[0].launch.stage == "recorded"
assert {report.launch.stage for report in treeplay.graph_reports() if report.operators} == {"recorded"}
assert shared()["pools"] == [1], shared()
assert has_context(1) and not has_context(0)
"""


@pytest.mark.gpu
def test_T1_a_program_on_the_second_gpu_makes_no_context_on_the_first(fresh_python: FreshPython) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    fresh_python(_ASKED + _NOTHING + _ON_THE_SECOND, "cuda:1")


@pytest.mark.gpu
def test_T1_two_devices_in_turn_are_right(fresh_dynamo: None) -> None:
    import torch

    from support import assert_alike, jit
    from support.compiled import compiled, new_reports

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    devices = ("cuda:0", "cuda:1")
    weights = {device: torch.linspace(-1, 1, 8, device=device) for device in devices}

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * weights[str(x.device)]).tanh() * 2 - x

    jitted = {device: jit(lambda x, device=device: (x * weights[device]).tanh() * 2 - x) for device in devices}
    backend = {device: compiled(lambda x, device=device: (x * weights[device]).tanh() * 2 - x) for device in devices}
    kept = []
    for call in range(12):
        for device in devices if call % 3 else devices[::-1]:
            x = torch.arange(8.0, device=device) + call
            kept += [(run[device](x), program(x)) for run in (jitted, backend)]
    for found, expected in kept:
        assert found.device == expected.device
        assert_alike(found, expected)
    for run in jitted.values():
        assert run.statistics().keys[0].recordings[0].launch.stage == "recorded"
    launches = [report.launch for report in new_reports()]
    assert len(launches) == 2 and {launch.stage for launch in launches if launch is not None} == {"recorded"}
