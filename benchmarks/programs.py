"""The programs that are measured: each is a model, an optimizer or none, a batch and a loss, all made from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from treeplay.cli.digits import BATCH, make_network

Batch = tuple[torch.Tensor, ...]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

_LAYERS = 8
_VOCABULARY = 64


@dataclass(frozen=True, slots=True)
class Program:
    """One program. Without an optimizer it is inference: the model in eval mode under `torch.no_grad()`."""

    name: str
    title: str
    make_model: Callable[[], nn.Module]
    make_batch: Callable[[], Batch]
    make_optimizer: MakeOptimizer | None = None
    loss: Callable[..., torch.Tensor] = nn.functional.mse_loss

    @property
    def is_training(self) -> bool:
        """Whether a call is a whole training step."""
        return self.make_optimizer is not None


class Block(nn.Module):
    """A transformer block: causal self-attention and a two-layer perceptron, each with its norm in front."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, width = x.shape
        parts = self.project_in(self.norm_1(x)).view(b, t, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project_out(mixed.transpose(1, 2).reshape(b, t, width))
        out: torch.Tensor = x + self.perceptron(self.norm_2(x))
        return out


class Transformer(nn.Module):
    """Tokens `[b, t]` to logits of the next token `[b * t, vocabulary]`."""

    def __init__(self, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_VOCABULARY, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, _VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.tokens(tokens) + self.places)
        logits: torch.Tensor = self.head(x)
        return logits.flatten(0, 1)


def _mlp(width: int) -> nn.Module:
    layers = [layer for _ in range(_LAYERS) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def _mlp_step(width: int, batch: int, optimizer_name: str, make_optimizer: MakeOptimizer) -> Program:
    return Program(
        name=f"mlp{width}-{optimizer_name.lower()}",
        title=f"training step, MLP {_LAYERS}×{width}, batch {batch}, {optimizer_name}",
        make_model=lambda: _mlp(width),
        make_batch=lambda: (torch.randn(batch, width), torch.randn(batch, width)),
        make_optimizer=make_optimizer,
    )


PROGRAMS = (
    _mlp_step(64, 16, "SGD", _sgd),
    _mlp_step(64, 16, "AdamW", _adamw),
    _mlp_step(256, 32, "SGD", _sgd),
    _mlp_step(256, 32, "AdamW", _adamw),
    Program(
        name="digits-sgd",
        title=f"training step, CNN on 8×8 digits, batch {BATCH}, SGD",
        make_model=make_network,
        make_batch=lambda: (torch.rand(BATCH, 1, 8, 8), torch.randint(10, (BATCH,))),
        make_optimizer=_sgd,
        loss=nn.functional.cross_entropy,
    ),
    Program(
        name="transformer-adamw",
        title="training step, transformer 2×64, 32 tokens, batch 8, AdamW",
        make_model=lambda: Transformer(width=64, heads=4, layers=2, length=32),
        make_batch=lambda: (torch.randint(_VOCABULARY, (8, 32)), torch.randint(_VOCABULARY, (8 * 32,))),
        make_optimizer=_adamw,
        loss=nn.functional.cross_entropy,
    ),
    Program(
        name="mlp64-inference",
        title=f"inference, MLP {_LAYERS}×64, batch 1",
        make_model=lambda: _mlp(64),
        make_batch=lambda: (torch.randn(1, 64),),
    ),
)


def find_program(name: str) -> Program:
    """The program called `name`; `KeyError` with the names there are if there is none."""
    for program in PROGRAMS:
        if program.name == name:
            return program
    raise KeyError(f"no program {name!r}; there are {', '.join(program.name for program in PROGRAMS)}")
