"""What a model of the zoo is: how it is built, what it is fed, and what it is trained for. Nothing is downloaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

Size = Literal["tiny", "published"]
Loss = Callable[[Any, torch.Tensor], torch.Tensor]
SIZES: tuple[Size, ...] = ("tiny", "published")


@dataclass(frozen=True, slots=True)
class Feed:
    """What one call is given: the model's arguments by name, and what the loss compares its result with."""

    inputs: dict[str, torch.Tensor]
    target: torch.Tensor


@dataclass(frozen=True, slots=True)
class Model:
    """A published architecture. `tiny` keeps its layers and options, at widths that a CPU runs in milliseconds.

    `build` and `feed` draw from torch's generator; `feed(size, device)`. `loss(result, target)` gives a scalar.
    """

    name: str
    title: str
    package: str | None
    build: Callable[[Size], nn.Module]
    feed: Callable[[Size, torch.device], Feed]
    loss: Loss

    def why_missing(self) -> str | None:
        """Why this model cannot be built here: its package is not installed, or does not fit this torch. None if it can."""
        try:
            if self.package is not None:
                importlib.import_module(self.package)
        except (ImportError, OSError, RuntimeError) as error:  # the last two: built for another torch
            return f"{self.package}: {type(error).__name__}: {error}".splitlines()[0]
        return None

    def make(self, size: Size, device: torch.device, *, training: bool, seed: int = 0) -> nn.Module:
        """The model with the weights of `seed`, in the mode asked for."""
        torch.manual_seed(seed)
        return self.build(size).to(device).train(training)

    def feeds(self, size: Size, device: torch.device, count: int, *, seed: int = 1) -> list[Feed]:
        """Different batches of the same shapes."""
        torch.manual_seed(seed)
        return [self.feed(size, device) for _ in range(count)]


def pick(size: Size, tiny: Any, published: Any) -> Any:
    """The value for this size."""
    return tiny if size == "tiny" else published


def of_logits(result: Any, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the logits, in a field or as they are, of each position."""
    logits = result if isinstance(result, torch.Tensor) else result.logits
    return nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten())


def of_tensor(result: Any, target: torch.Tensor) -> torch.Tensor:
    """Mean squared error of the result."""
    return nn.functional.mse_loss(result, target)
