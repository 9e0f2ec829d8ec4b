"""Sequences of 40 lengths: padded to a few lengths, with a mask, they need a few recordings.

python examples/lengths.py
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import treeplay

BUCKETS = 20, 40
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        padding = tokens == 0
        hidden = self.layer(self.embedding(tokens), src_key_padding_mask=padding)
        hidden = hidden.masked_fill(padding.unsqueeze(-1), 0.0)
        return self.head(hidden.sum(1) / (~padding).sum(1, keepdim=True))


def padded(tokens: torch.Tensor) -> torch.Tensor:
    """Up to the next of a few lengths; the mask keeps the padding out of the result."""
    length = next(bucket for bucket in BUCKETS if bucket >= tokens.shape[1])
    return F.pad(tokens, (0, length - tokens.shape[1]))


def train(jit: Callable[..., Any], prepare: Callable[[torch.Tensor], torch.Tensor]) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = Classifier().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        return loss

    for number in range(80):
        tokens = torch.randint(1, 50, (4, 1 + number * 7 % 40), device=device)
        step(prepare(tokens), torch.randint(3, (4,), device=device))
    return model, step


model, step = train(treeplay.jit, padded)
eager, _ = train(lambda program: program, lambda tokens: tokens)
torch.testing.assert_close([*model.parameters()], [*eager.parameters()], rtol=1e-3, atol=1e-4)
assert step.statistics().recordings == len(BUCKETS)
print(f"replayed {step.statistics().replays} of {step.statistics().calls} calls")
