"""Decoding token by token: with a cache of one size there is one recording; with a growing one there are none to keep.

python examples/decoding.py
"""

import warnings

import torch
from torch import nn
from torch.nn import functional as F

import treeplay

LENGTH, WIDTH = 48, 16
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, 50)
        self.register_buffer("keys", torch.zeros(1, LENGTH, WIDTH))
        self.register_buffer("values", torch.zeros(1, LENGTH, WIDTH))

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The next token. `position` is a tensor: as a number, it would be part of the key."""
        query, key, value = self.project(self.embedding(token)).chunk(3, -1)
        self.keys.index_copy_(1, position, key)
        self.values.index_copy_(1, position, value)
        seen = torch.arange(LENGTH, device=token.device) <= position
        return self.next(F.scaled_dot_product_attention(query, self.keys, self.values, seen[None, None]))

    def grow(
        self, token: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same with a cache that is one longer after each token."""
        query, key, value = self.project(self.embedding(token)).chunk(3, -1)
        keys, values = torch.cat([keys, key], 1), torch.cat([values, value], 1)
        return self.next(F.scaled_dot_product_attention(query, keys, values)), keys, values

    def next(self, attended: torch.Tensor) -> torch.Tensor:
        return self.head(attended).argmax(-1)


@torch.no_grad()
def decode(step, start: int) -> list[int]:
    token, found = torch.full((1, 1), start, device=device), []
    for position in range(LENGTH):
        token = step(token, torch.full((1,), position, device=device))
        found.append(token)
    return torch.cat(found).flatten().tolist()  # read once, at the end


@torch.no_grad()
def decode_growing(step, start: int) -> list[int]:
    token, found = torch.full((1, 1), start, device=device), []
    keys = values = torch.zeros(1, 0, WIDTH, device=device)
    for _ in range(LENGTH):
        token, keys, values = step(token, keys, values)
        found.append(token)
    return torch.cat(found).flatten().tolist()


model = Decoder().to(device).eval()
step, growing = treeplay.jit(model), treeplay.jit(model.grow)
for start in range(3):
    assert decode(step, start) == decode(model, start)

# Each call of a growing cache has another size. After a few of them treeplay says so and runs the others as they are.
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for start in range(3):
        assert decode_growing(growing, start) == decode_growing(model.grow, start)
for warning in told:
    print(warning.message)
found = step.statistics()
assert found.recordings == 1
print(f"replayed {found.replays} of {found.calls} calls")
