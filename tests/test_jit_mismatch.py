"""A call that fits no recording says why: what differs from the nearest recording, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import jit
from treeplay.values.statistics import KeyFacts

GPU = pytest.param(
    "cuda",
    marks=pytest.mark.gpu,
)
DEVICES = ["cpu", GPU]


class World:
    """A whole step that was recorded on a device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scale = 2.0
        self.program = jit(self.step)
        self.run()

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = (self.model(x) * self.scale - y).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, rows: int = 5, targets: int = 5) -> None:
        """Calls until there is a recording that was launched."""
        for _ in range(4):
            self.program(torch.randn(rows, 3, device=self.device), torch.randn(targets, 2, device=self.device))

    def keys(self) -> tuple[KeyFacts, ...]:
        keys: tuple[KeyFacts, ...] = self.program.statistics().keys
        return keys


CHANGES: dict[str, tuple[Callable[[World], Any], str]] = {
    "a number": (lambda w: setattr(w, "scale", 3.0), "self.scale: 3.0, recorded with 2.0"),
    "a number that flips a branch": (
        lambda w: w.optimizer.param_groups[0].update(weight_decay=0.1),
        "self.optimizer.param_groups[0]['weight_decay']: 0.1, recorded with 0",
    ),
    "a parameter of another shape": (
        lambda w: setattr(w.model[2], "bias", nn.Parameter(torch.zeros(1, device=w.device))),
        "self.model.2.bias: ",
    ),
    "a frozen parameter": (lambda w: w.model[0].weight.requires_grad_(False), "self.model.0.weight: "),
    "another module": (lambda w: w.model.__setitem__(1, nn.Sigmoid()), "self.model.1: this Sigmoid"),
    "a hook of a module": (
        lambda w: w.model[1].register_forward_hook(lambda m, i, o: o * 2),
        "self.model.1._forward_hooks",
    ),
    "a hook of a parameter": (
        lambda w: w.model[0].weight.register_hook(lambda g: g * 2),
        "self.model.0.weight._backward_hooks: 1 hooks",
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", CHANGES)
def test_T25_one_change_is_named_alone(what: str, device: str) -> None:
    change, text = CHANGES[what]
    world = World(device)
    change(world)
    world.run()
    (key,) = world.keys()
    (cause,) = key.rerecorded_because
    assert cause.startswith(text) and ";" not in cause and key.rerecorded == 1
    assert world.program.statistics().recordings == 2 and key.recordings[-1].replays > 0
    assert f"recorded anew: {cause}" in world.program.explain()


@pytest.mark.parametrize("device", DEVICES)
def test_T25_one_reshaped_argument_is_named_alone(device: str) -> None:
    world = World(device)
    world.run(targets=1)
    first, second = world.keys()
    assert first.rerecorded_because == second.rerecorded_because == first.differs == ()
    (mismatch,) = second.differs
    assert (mismatch.what, mismatch.recorded.split()[0]) == ("args[1]", "float32[5,")
    assert "unlike the nearest that was recorded: args[1]: " in world.program.explain()


@pytest.mark.parametrize("device", DEVICES)
def test_T25_the_nearest_recording_is_compared_not_the_last(device: str) -> None:
    world = World(device)
    world.run(rows=1, targets=1)
    world.run(rows=5, targets=1)
    third = world.keys()[-1]
    assert [item.what for item in third.differs] == ["args[0]"]  # as with (1, 1), which came last; (5, 5) is as near
    with torch.autocast(device, torch.bfloat16):
        world.run(rows=1, targets=1)
    assert [item.what for item in world.keys()[-1].differs] == ["autocast"]


@pytest.mark.parametrize("device", DEVICES)
def test_moved_state_is_followed_without_a_new_recording(device: str) -> None:
    world = World(device)
    for parameter in world.model.parameters():
        parameter.data = parameter.data.clone()
    world.run()
    (key,) = world.keys()
    (recording,) = key.recordings
    assert key.rerecorded_because == () and recording.replays == 7 - sum(recording.not_replayed.values())
    assert world.program.statistics().moves == (0 if device == "cpu" else recording.launch.patched)
    if device == "cuda":
        assert recording.launch.stage == "recorded" and recording.launch.patched >= 4


@pytest.mark.compile
@pytest.mark.parametrize("device", DEVICES)
def test_arguments_that_come_to_share_memory_are_named(device: str) -> None:
    base = torch.ones(8, device=device)
    jitted = jit(lambda a, b: a.mul_(2) - b, lower="inductor")
    for _ in range(4):
        jitted(torch.ones(4, device=device), torch.ones(4, device=device))
    for _ in range(2):
        jitted(base[:4], base[2:6])
    (cause,) = jitted.statistics().keys[0].rerecorded_because
    assert cause == "args[0] and args[1]: shared memory, recorded with memory of their own"


def test_T25_a_limit_is_for_each_key_and_named_when_it_is_reached() -> None:
    options = {"scale": ""}
    jitted = jit(lambda x: x * len(options["scale"]), on_refusal="eager")
    with treeplay.settings.changed(max_rerecordings=2), pytest.warns(UserWarning, match="max_rerecordings"):
        for size in (2, 3):
            for _ in range(2):
                jitted(torch.ones(size))
        for _ in range(4):
            options["scale"] += "a"
            for _ in range(2):
                jitted(torch.ones(2))
    other, limited = jitted.statistics().keys  # in the order of their last calls
    assert (limited.rerecorded, limited.phase, other.rerecorded, other.phase) == (2, "refused", 0, "recorded")
    assert "recorded anew 2 times" in limited.refusal and "options['scale']: 'aa', recorded with 'a'" in limited.refusal


class Mode:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")


def test_an_argument_that_cannot_be_shown_is_recorded_all_the_same() -> None:
    jitted, x = jit(lambda x, mode: x * mode.factor - 1, on_refusal="raise"), torch.ones(2)
    for mode in [Mode(2)] * 3 + [Mode(3)] * 3:
        assert torch.equal(jitted(x, mode), x * mode.factor - 1)
    assert jitted.statistics().recordings == 2
    assert "args[1]: this Mode, recorded with this Mode" in jitted.explain()


def test_a_change_that_cannot_be_shown_is_refused_all_the_same() -> None:
    modes = [Mode(2)]

    def program(x: torch.Tensor) -> torch.Tensor:
        modes[:] = [Mode(modes[0].factor + 1)]
        return x * 3 - 1

    jitted = jit(program, on_refusal="eager")
    for _ in range(3):
        assert torch.equal(jitted(torch.ones(2)), torch.ones(2) * 2)
    (key,) = jitted.statistics().keys
    assert key.refusal is not None and "changes a Python value from this Mode to this Mode" in str(key.refusal)
