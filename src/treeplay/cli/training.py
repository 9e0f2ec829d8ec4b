"""The demo's race: the same network trained from the same seed on the same batches, each learner in its own way.

batch ─┬─▶ eager      ─▶ loss, seconds
       ├─▶ treeplay   ─▶ loss, seconds      one after the other on each batch, so that all meet the same machine
       └─▶ a peer     ─▶ loss, seconds
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

import torch
from torch import nn

import treeplay
from treeplay.cli.digits import Digits, make_network
from treeplay.observe import keep_rng, same
from treeplay.program import Jitted
from treeplay.values.verdict import Verdict

Batch = tuple[torch.Tensor, torch.Tensor]
TrainingStep = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
TracedLower = Literal["auto", "inductor", "aten"]
CPU = torch.device("cpu")

TOLERANCE = 1e-4
_FIRST_STEPS = 3  # never timed: first calls build things, whoever makes them
_FIRST_RATE, _LAST_RATE = 0.05, 0.002


@dataclass(slots=True, eq=False)
class Learner:
    """One network, the step that trains it, and what each step gave. `seconds` are those of settled steps only."""

    name: str
    network: nn.Module
    optimizer: torch.optim.Optimizer
    step: TrainingStep
    losses: list[torch.Tensor] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def median_us(self) -> float | None:
        """Microseconds of a settled step, or None if there was none."""
        return statistics.median(self.seconds) * 1e6 if self.seconds else None


@dataclass(frozen=True, slots=True)
class Score:
    """How a network does on digits it has not seen."""

    loss: float
    correct: int
    total: int

    @property
    def accuracy(self) -> float:
        """The share of digits that are right, from 0 to 1."""
        return self.correct / self.total


def make_eager(seed: int, device: torch.device = CPU) -> Learner:
    """Plain PyTorch."""
    network, optimizer = _make(seed, device)
    return Learner("eager", network, optimizer, _training_step(network, network, optimizer))


def make_replayed(
    seed: int, lower: TracedLower, device: torch.device = CPU
) -> tuple[Learner, Jitted[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """The whole step under `treeplay.jit`; a step that cannot be recorded raises `Refusal`."""
    network, optimizer = _make(seed, device)
    step = treeplay.jit(_training_step(network, network, optimizer), lower=lower, on_refusal="raise")
    return Learner("treeplay", network, optimizer, step), step


def make_peer(seed: int, device: torch.device = CPU) -> Learner:
    """The network under `torch.compile`, the rest of the step as it is."""
    network, optimizer = _make(seed, device)
    step = _training_step(network, torch.compile(network), optimizer)
    return Learner("torch.compile", network, optimizer, step)


def train(
    learners: list[Learner], data: list[Batch], jitted: Jitted[..., torch.Tensor], drain: Callable[[], None]
) -> Iterator[int]:
    """Train all learners batch by batch; gives the number of each finished step.

    The learning rate falls from step to step, outside of the program: for a recording it is an input like the batch.
    A step is over when `drain` returns, which waits for the device. A step in which `jitted` ran eagerly or recorded is
    not timed.
    """
    for number, batch in enumerate(data, start=1):
        rate = _FIRST_RATE + (_LAST_RATE - _FIRST_RATE) * number / len(data)
        for learner in learners:
            learner.optimizer.param_groups[0]["lr"] = rate
            before = _unsettled(jitted)
            drain()
            start = perf_counter()
            loss = learner.step(*batch)
            drain()
            seconds = perf_counter() - start
            learner.losses.append(loss.detach())
            if number > _FIRST_STEPS and _unsettled(jitted) == before:
                learner.seconds.append(seconds)
        yield number


def agreement(reference: Learner, learner: Learner) -> Verdict:
    """Whether both had the same loss at every step, within `TOLERANCE`."""
    return same(torch.stack(reference.losses), torch.stack(learner.losses), tol=TOLERANCE, on_message=_ignore)


def largest_difference(reference: Learner, learner: Learner) -> float:
    """The largest difference of any two losses of one step."""
    return float((torch.stack(reference.losses) - torch.stack(learner.losses)).abs().max())


def score(network: nn.Module, digits: Digits) -> Score:
    """Put `network` to the test, in eval mode; its mode is put back."""
    was_training = network.training
    network.eval()
    with torch.no_grad():
        logits = network(digits.held_out_images)
    network.train(was_training)
    loss = nn.functional.cross_entropy(logits, digits.held_out_labels)
    correct = int((logits.argmax(1) == digits.held_out_labels).sum())
    return Score(float(loss), correct, len(digits.held_out_labels))


def _make(seed: int, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    with keep_rng():
        torch.manual_seed(seed)
        network = make_network().to(device)
    return network, torch.optim.SGD(network.parameters(), lr=_FIRST_RATE, momentum=0.9)


def _training_step(
    network: nn.Module, forward: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer
) -> TrainingStep:
    """One whole training step as a program."""
    network.train()

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(forward(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    step.__qualname__ = "step"  # the name in reports
    return step


def _unsettled(jitted: Jitted[..., torch.Tensor]) -> tuple[int, tuple[str, ...]]:
    """What changes in a call that is no plain replay: on a GPU a recording runs unrecorded once, then is captured."""
    facts = jitted.statistics()
    stages = tuple(recording.launch.stage for key in facts.keys for recording in key.recordings)
    return facts.eager_calls + facts.recordings, stages


def _ignore(message: str) -> None:
    """The verdict says it all."""
