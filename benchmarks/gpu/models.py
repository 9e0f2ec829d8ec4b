"""The networks that are measured on a GPU. Real architectures are built from their configurations: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.programs import Block


def perceptron(layers: int, width: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers of one width with activations between them."""
    stack = [layer for _ in range(layers) for layer in (nn.Linear(width, width), activation())]
    return nn.Sequential(*stack[:-1])


class Decoder(nn.Module):
    """A GPT: tokens `[b, t]` to logits of the next token `[b * t, vocabulary]`."""

    def __init__(self, *, layers: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of all positions, flat."""
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.tokens(tokens) + self.places)))
        return logits.flatten(0, 1)


class FirstRow(nn.Module):
    """Reads one row of a large input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))

    def forward(self, table: torch.Tensor) -> torch.Tensor:
        """The first row, scaled and squashed."""
        return torch.tanh(table[0] * self.scale)


class Field(nn.Module):
    """A model of transformers, called with tokens alone; gives one field of its result."""

    def __init__(self, model: nn.Module, field: str) -> None:
        super().__init__()
        self.model, self.field = model, field

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The field, its positions flattened."""
        found: torch.Tensor = getattr(self.model(input_ids=tokens), self.field)
        return found.flatten(0, 1)


def image_model(name: str, **options: Any) -> nn.Module:
    """An architecture of timm with random weights."""
    import timm

    model: nn.Module = timm.create_model(name, pretrained=False, **options)
    return model


def bert_base() -> nn.Module:
    """BERT-base without its head."""
    from transformers import BertConfig, BertModel

    return Field(BertModel(BertConfig(), add_pooling_layer=False), "last_hidden_state")


def gpt2(layers: int, length: int) -> nn.Module:
    """GPT-2 of the small width with fewer layers and no dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_positions=length, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
    )
    return Field(GPT2LMHeadModel(config), "logits")
