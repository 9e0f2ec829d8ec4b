"""The programs that are measured on a GPU, made from a seed: a network, how it is fed, and an optimizer for a training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from benchmarks.gpu import models

Batch = tuple[torch.Tensor, ...]
Precision = Literal["float32", "tf32", "bfloat16"]

VOCABULARY = 512
GPT2_VOCABULARY = 50257
TOLERANCES: dict[Precision, float] = {"float32": 1e-4, "tf32": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True, slots=True)
class Program:
    """One program. With an optimizer a call is a whole training step, else inference in eval mode without gradients.

    `inputs`: over how many batches, each with its own addresses, the calls rotate. `kept`: how many of the last results stay
    alive, as in a program that looks at them later. `tolerance` bounds the largest difference from eager, relative to the
    largest value.
    """

    name: str
    title: str
    make_model: Callable[[], nn.Module]
    make_batch: Callable[[torch.device], Batch]
    optimizer: Literal["SGD", "AdamW"] | None = None
    loss: Callable[..., torch.Tensor] = nn.functional.cross_entropy
    precision: Precision = "float32"
    inputs: int = 3
    kept: int = 2

    @property
    def is_training(self) -> bool:
        """Whether a call is a whole training step."""
        return self.optimizer is not None

    @property
    def tolerance(self) -> float:
        """How far a result may be from eager's: training accumulates rounding, and an update follows a gradient's sign."""
        return TOLERANCES[self.precision] * (5 if self.is_training else 1)


def _normal(*shape: int) -> Callable[[torch.device], Batch]:
    return lambda device: (torch.randn(shape, device=device),)


def _images(count: int, classes: int | None = None, dtype: torch.dtype = torch.float32) -> Callable[..., Batch]:
    def make(device: torch.device) -> Batch:
        images = torch.randn(count, 3, 224, 224, device=device).to(dtype)
        return (images,) if classes is None else (images, torch.randint(classes, (count,), device=device))

    return make


def _tokens(count: int, length: int, vocabulary: int, *, with_targets: bool) -> Callable[[torch.device], Batch]:
    def make(device: torch.device) -> Batch:
        tokens = torch.randint(vocabulary, (count, length), device=device)
        return (tokens, torch.randint(vocabulary, (count * length,), device=device)) if with_targets else (tokens,)

    return make


def _mlp_step(optimizer: Literal["SGD", "AdamW"]) -> Program:
    return Program(
        name=f"mlp16x256-{optimizer.lower()}",
        title=f"training step, MLP 16×256, batch 32, {optimizer}",
        make_model=lambda: models.perceptron(16, 256),
        make_batch=lambda device: (torch.randn(32, 256, device=device), torch.randn(32, 256, device=device)),
        optimizer=optimizer,
        loss=nn.functional.mse_loss,
    )


def _gpt_step(optimizer: Literal["SGD", "AdamW"]) -> Program:
    return Program(
        name=f"gpt6x512-{optimizer.lower()}",
        title=f"training step, GPT 6×512, batch 4, 64 tokens, tf32, {optimizer}",
        make_model=lambda: models.Decoder(layers=6, width=512, heads=8, length=64, vocabulary=VOCABULARY),
        make_batch=_tokens(4, 64, VOCABULARY, with_targets=True),
        optimizer=optimizer,
        precision="tf32",
    )


PROGRAMS = (
    Program(
        name="mlp8x256-inference",
        title="inference, MLP 8×256, batch 1, one input, results dropped",
        make_model=lambda: models.perceptron(8, 256),
        make_batch=_normal(1, 256),
        inputs=1,
        kept=0,
    ),
    Program(
        name="mlp8x256-rotating",
        title="inference, MLP 8×256, batch 1",
        make_model=lambda: models.perceptron(8, 256),
        make_batch=_normal(1, 256),
    ),
    _mlp_step("SGD"),
    _mlp_step("AdamW"),
    _gpt_step("SGD"),
    _gpt_step("AdamW"),
    Program(
        name="large-input",
        title="inference, 1 GiB of input, 8 KiB of it read",
        make_model=lambda: models.FirstRow(2048),
        make_batch=_normal(2**17, 2048),
    ),
    Program(
        name="gpt12x768-inference",
        title="inference, GPT 12×768, batch 1, 16 tokens, bfloat16",
        make_model=lambda: models.Decoder(layers=12, width=768, heads=12, length=16, vocabulary=GPT2_VOCABULARY),
        make_batch=_tokens(1, 16, GPT2_VOCABULARY, with_targets=False),
        precision="bfloat16",
    ),
    Program(
        name="resnet50-inference",
        title="inference, ResNet-50, batch 1, tf32",
        make_model=lambda: models.image_model("resnet50"),
        make_batch=_images(1),
        precision="tf32",
    ),
    Program(
        name="bert-inference",
        title="inference, BERT-base, batch 1, 128 tokens, bfloat16",
        make_model=models.bert_base,
        make_batch=_tokens(1, 128, 30522, with_targets=False),
        precision="bfloat16",
    ),
    Program(
        name="vit-small-inference",
        title="inference, ViT-small, batch 1, bfloat16",
        make_model=lambda: models.image_model("vit_small_patch16_224"),
        make_batch=_images(1, dtype=torch.bfloat16),
        precision="bfloat16",
    ),
    Program(
        name="resnet18-adamw",
        title="training step, ResNet-18, batch 16, tf32, AdamW",
        make_model=lambda: models.image_model("resnet18"),
        make_batch=_images(16, 1000),
        optimizer="AdamW",
        precision="tf32",
    ),
    Program(
        name="gpt2-adamw",
        title="training step, GPT-2 of 4 layers, batch 2, 128 tokens, tf32, AdamW",
        make_model=lambda: models.gpt2(4, 128),
        make_batch=_tokens(2, 128, GPT2_VOCABULARY, with_targets=True),
        optimizer="AdamW",
        precision="tf32",
    ),
    Program(
        name="vit-tiny-adamw",
        title="training step, ViT-tiny, batch 16, tf32, AdamW",
        make_model=lambda: models.image_model("vit_tiny_patch16_224"),
        make_batch=_images(16, 1000),
        optimizer="AdamW",
        precision="tf32",
    ),
)


def find_program(name: str) -> Program:
    """The program called `name`; `KeyError` with the names there are if there is none."""
    for program in PROGRAMS:
        if program.name == name:
            return program
    raise KeyError(f"no program {name!r}; there are {', '.join(program.name for program in PROGRAMS)}")
