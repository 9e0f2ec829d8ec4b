"""T7: what a first call takes of the GPU's memory beside what the program takes as it is. A process for each measurement."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.soak,
    pytest.mark.timeout(700),
]

_STEPS = """
import sys, warnings
warnings.simplefilter("ignore")
import torch, treeplay
from torch import nn
from treeplay.torch_compile import backend
way, name, fraction = sys.argv[1], sys.argv[2], float(sys.argv[3])
if fraction:
    torch.cuda.set_per_process_memory_fraction(fraction / torch.cuda.get_device_properties(0).total_memory)
torch.manual_seed(0)
if name == "mlp":
    model = nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(4096, 4096), nn.GELU()))).cuda()
    feeds = [({"input": torch.randn(4096, 4096, device="cuda")}, torch.randn(4096, 4096, device="cuda"))] * 6
    loss_of = nn.functional.mse_loss
else:
    from benchmarks.backend.zoo import find_model
    found = find_model(name)
    model = found.make("published", torch.device("cuda"), training=True)
    feeds = [(feed.inputs, feed.target) for feed in found.feeds("published", torch.device("cuda"), 6)]
    loss_of = found.loss
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
compiled = {
    "treeplay": lambda: torch.compile(model, backend=backend),
    "reduce-overhead": lambda: torch.compile(model, mode="reduce-overhead"),
}
run = compiled[way]() if way in compiled else model

def step(inputs, target):
    optimizer.zero_grad()
    loss = loss_of(run(**inputs), target)
    loss.backward()
    optimizer.step()
    return loss.detach()

call = treeplay.jit(step) if way == "jit" else step
torch.cuda.reset_peak_memory_stats()
for inputs, target in feeds:
    call(inputs, target)
torch.cuda.synchronize()
if way == "jit":
    stages = {call.statistics().keys[0].recordings[0].launch.stage}
elif way == "treeplay":
    stages = {report.launch.stage for report in treeplay.graph_reports()}
else:
    stages = {"recorded"}
print(torch.cuda.max_memory_reserved(), *stages)
"""

NAMES = ["mlp", "resnet50", "gpt2"]
OWED = pytest.mark.xfail(
    reason="the captures of a proof allocate what the program allocates, beside stand-ins", strict=False
)


def peak(way: str, name: str, at_most: float = 0.0) -> int:
    """The most bytes that were reserved over six steps, all of which but the first were recorded or replayed."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "steps.py")
        script.write_text(_STEPS)
        command = [sys.executable, str(script), way, name, str(at_most)]
        found = {"PYTHONPATH": os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env={**os.environ, **found}, check=False
        )
    assert done.returncode == 0, done.stderr
    reserved, *stages = done.stdout.splitlines()[-1].split()
    assert stages == ["recorded"]
    return int(reserved)


@OWED
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("way", "peer"), [("jit", "eager"), ("treeplay", "reduce-overhead")])
def test_T7_the_first_calls_take_little_more_memory_than_the_peer(way: str, peer: str, name: str) -> None:
    assert peak(way, name) <= 1.15 * peak(peer, name)


@OWED
@pytest.mark.parametrize("way", ["jit", "treeplay"])
def test_T7_a_step_is_recorded_with_a_third_more_than_eager_needs(way: str) -> None:
    peak(way, "mlp", at_most=1.3 * peak("eager", "mlp"))


@pytest.mark.parametrize("way", ["jit", "treeplay"])
def test_T7_a_step_is_recorded_with_four_times_what_eager_needs(way: str) -> None:
    peak(way, "mlp", at_most=4.0 * peak("eager", "mlp"))
