"""What the demo learns from and with: scikit-learn's 1,797 handwritten digits of 8x8 pixels, and a small network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from treeplay.cli.outcome import CommandError

BATCH = 64
HELD_OUT = 360
_SPLIT_SEED = 0
_BRIGHTEST = 16.0


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """Images `[n, 1, 8, 8]` from 0 to 1 and labels `[n]`, to train on and held out."""

    images: torch.Tensor
    labels: torch.Tensor
    held_out_images: torch.Tensor
    held_out_labels: torch.Tensor

    def to(self, device: torch.device) -> Digits:
        """The same digits on a device."""
        kept = self.images.to(device), self.labels.to(device)
        return Digits(*kept, self.held_out_images.to(device), self.held_out_labels.to(device))


def load_digits() -> Digits:
    """The data set, always split in the same way. Raises `CommandError` where scikit-learn is missing."""
    try:
        from sklearn import datasets
    except ImportError:
        raise CommandError(
            "the demo trains on scikit-learn's digits, and scikit-learn is not installed\n"
            "  fix:    pip install 'treeplay[demo]'"
        ) from None
    raw = datasets.load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / _BRIGHTEST
    labels = torch.tensor(raw.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    held_out, kept = order[:HELD_OUT], order[HELD_OUT:]
    return Digits(images[kept], labels[kept], images[held_out], labels[held_out])


def batches(digits: Digits, *, steps: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """`steps` batches of one size: shuffled anew each time through the data, an incomplete last batch left out."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if len(order) < BATCH:
            order = torch.randperm(len(digits.labels), generator=generator)
        chosen, order = order[:BATCH], order[BATCH:]
        yield digits.images[chosen], digits.labels[chosen]


def make_network() -> nn.Module:
    """Two convolutions with batch norm, and a linear layer on top: 6,138 parameters.

    Smooth on purpose. At the kink of a ReLU or a max-pool the last bit of a sum decides which way a gradient goes, so
    two correct runs that only round differently drift apart; here they stay together and can be held to 1e-4.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
