"""How far a way's results, gradients and state are from eager's on the same weights and feeds.

forward    a few batches without gradients                           largest difference of a result
training   a few whole steps with AdamW, each from eager's state     of losses, gradients, and parameters after each step
rounding   eager itself, from float64 and from shaken weights        what eager's own arithmetic makes of it

Each step begins with eager's weights and optimizer state, copied in place: over several steps, what rounds otherwise grows
without bounds in some networks, and hides what is wrong.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from benchmarks.backend.model import Feed, Loss
from benchmarks.backend.ways import EAGER, Call, Way

LEARNING_RATE = 1e-4
_SHAKES = 6
FIRST_CALLS = 3  # treeplay.jit runs, records, replays; on a GPU it captures in the third


def _nothing() -> None:
    """A device that has done its work when a call returns."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Largest differences, each relative to eager's largest value; zero is bit for bit."""

    results: float
    gradients: float = 0.0
    parameters: float = 0.0

    def with_step(self, losses: tuple[Any, Any], found: _Trained, expected: _Trained) -> Agreement:
        """This, and one more step of training."""
        gradients = difference(found.gradients, _single(expected.gradients))
        return self.or_worse(
            Agreement(difference(*losses), gradients, difference(found.state, _single(expected.state)))
        )

    def or_worse(self, other: Agreement) -> Agreement:
        """The larger difference of each kind."""
        return Agreement(*map(max, asdict(self).values(), asdict(other).values()))

    @property
    def worst(self) -> float:
        """The largest of all."""
        return max(asdict(self).values())


DIFFERENCES = tuple(field.name for field in fields(Agreement))
"""What an agreement tells, by name."""


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """No TF32, and convolutions by algorithms that add up in one order: what differs is not the arithmetic's choice."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic = False, False, True
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic = before


@dataclass(frozen=True, slots=True)
class Checked:
    """A way that was compared with eager: how it agrees, the call, ready for more, and the seconds of its first calls."""

    agreement: Agreement
    call: Call
    first_seconds: float


def forward_agreement(way: Way, model: nn.Module, feeds: list[Feed]) -> Agreement:
    """Of inference. All results are kept until the end: none may change."""
    return checked_forward(way, model, feeds).agreement


def training_agreement(way: Way, model: nn.Module, feeds: list[Feed], loss: Loss) -> Agreement:
    """Of whole training steps, each from the state of a copy of `model` that eager trains. Losses are kept as results are."""
    return checked_training(way, model, feeds, loss).agreement


def checked_forward(way: Way, model: nn.Module, feeds: list[Feed], drain: Callable[[], None] = _nothing) -> Checked:
    """`forward_agreement`, and what can be called further; `drain` waits for the device."""
    run, watch = way.forward(model), _Watch(drain)
    with torch.no_grad():
        found = [watch.timed(run, feed) for feed in feeds]
        expected = [EAGER.forward(model)(feed) for feed in feeds]
    return Checked(Agreement(difference(found, expected)), run, watch.seconds)


def checked_training(
    way: Way, model: nn.Module, feeds: list[Feed], loss: Loss, drain: Callable[[], None] = _nothing
) -> Checked:
    """`training_agreement`, and what can be called further; `drain` waits for the device."""
    found, expected = _Trained(way, model, loss), _Trained(EAGER, copy.deepcopy(model), loss)
    watch, agreement, losses = _Watch(drain), Agreement(0.0), list[tuple[Any, Any]]()
    for feed in feeds:
        losses.append((watch.timed(found.step, feed), expected.step(feed)))
        agreement = agreement.with_step(losses[-1], found, expected)
        found.follow(expected)
    kept = Agreement(difference([mine for mine, _ in losses], [eagers for _, eagers in losses]))
    return Checked(agreement.or_worse(kept), found.step, watch.seconds)


class _Watch:
    """Takes the time of the first calls, which compile and record."""

    def __init__(self, drain: Callable[[], None]) -> None:
        self._drain, self._left, self.seconds = drain, FIRST_CALLS, 0.0

    def timed(self, call: Call, feed: Feed) -> Any:
        """The result of a call."""
        if not self._left:
            return call(feed)
        self._left -= 1
        start = time.perf_counter()
        result = call(feed)
        self._drain()
        self.seconds += time.perf_counter() - start
        return result


def rounding(model: nn.Module, feeds: list[Feed], loss: Loss | None = None) -> Agreement:
    """How far eager is from eager in float64, and in training from eager with shaken weights. The model keeps its weights.

    Weights that differ in the last bit: what lies near the corner of an activation falls on the other side, or does not,
    and a gradient changes by much more than what rounded.
    """
    single, double = copy.deepcopy(model), copy.deepcopy(model).double()
    exact = [_double(feed) for feed in feeds]
    if loss is None:
        with torch.no_grad():
            found = [EAGER.forward(single)(feed) for feed in feeds]
            return Agreement(difference(found, _single([EAGER.forward(double)(feed) for feed in exact])))
    found, expected, agreement = _Trained(EAGER, single, loss), _Trained(EAGER, double, loss), Agreement(0.0)
    for feed, wanted in zip(feeds, exact, strict=True):
        losses = found.step(feed), _single(expected.step(wanted))
        agreement = agreement.with_step(losses, found, expected)
        expected.follow(found)
    return functools.reduce(Agreement.or_worse, _shaken(model, feeds, loss), agreement)


def _shaken(model: nn.Module, feeds: list[Feed], loss: Loss) -> Iterator[Agreement]:
    """How far eager is from eager with weights that differ by about one unit in the last place, a few times."""
    for seed in range(_SHAKES):
        generator = torch.Generator().manual_seed(seed)
        found, expected = (_Trained(EAGER, copy.deepcopy(model), loss) for _ in range(2))
        agreement = Agreement(0.0)
        for feed in feeds:
            expected.shake(generator)
            agreement = agreement.with_step((found.step(feed), expected.step(feed)), found, expected)
            expected.follow(found)
        yield agreement


def _double(feed: Feed) -> Feed:
    inputs = {name: _converted(value, torch.float32, torch.float64) for name, value in feed.inputs.items()}
    return Feed(inputs, _converted(feed.target, torch.float32, torch.float64))


def _single(results: Any) -> Any:
    return tree_map(lambda leaf: _converted(leaf, torch.float64, torch.float32), results)


def _converted(value: Any, there: torch.dtype, here: torch.dtype) -> Any:
    return value.to(here) if isinstance(value, torch.Tensor) and value.dtype == there else value


class _Trained:
    """A model that is trained in a way, with its optimizer; `step` takes a feed."""

    def __init__(self, way: Way, model: nn.Module, loss: Loss) -> None:
        self._model = model
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        self.step: Call = way.step(model, self._optimizer, loss)

    @property
    def gradients(self) -> list[torch.Tensor | None]:
        """Those of the last step."""
        return [parameter.grad for parameter in self._model.parameters()]

    @property
    def state(self) -> list[torch.Tensor]:
        """Parameters and buffers, and what the optimizer keeps of each parameter."""
        states = (self._optimizer.state[parameter] for parameter in self._model.parameters())
        kept = [state[name] for state in states for name in sorted(state)]
        return [tensor.detach() for tensor in (*self._model.state_dict().values(), *kept)]

    def follow(self, other: _Trained) -> None:
        """Take the state of another one, in place."""
        for mine, theirs in zip(self.state, other.state, strict=True):
            mine.copy_(theirs)

    def shake(self, generator: torch.Generator) -> None:
        """Change the parameters in their last bit."""
        with torch.no_grad():
            for parameter in self._model.parameters():
                noise = torch.randn(parameter.shape, generator=generator).to(parameter.device)
                parameter.mul_(1 + noise * torch.finfo(parameter.dtype).eps)


def difference(found: Any, expected: Any) -> float:
    """The largest difference of any two tensors of two nested results, relative to the largest value among them.

    Infinite if they have not the same containers, shapes and dtypes, or if one is not finite where the other is.
    """
    (left, structure), (right, wanted) = tree_flatten(found), tree_flatten(expected)
    if structure != wanted:
        return float("inf")
    worst = largest = 0.0
    for a, b in zip(left, right, strict=True):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            worst = worst if type(a) is type(b) and a == b else float("inf")
        elif a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        elif a.numel():
            apart = torch.where(a == b, 0.0, (a.double() - b.double()).abs()).nan_to_num(nan=float("inf"))
            worst = max(worst, float(apart.max()))
            largest = max(largest, float(b.double().abs().nan_to_num(posinf=0, neginf=0).max()))
    return worst / max(largest, 1e-12)
