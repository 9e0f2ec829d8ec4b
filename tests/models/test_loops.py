"""Everyday training loops over published models: a scheduler, warm-up, clipping, EMA, logging, evaluation every few steps.

At most three recordings of each jitted program, no refusal, and what eager computes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import treeplay

CPU = torch.device("cpu")
GPU = pytest.mark.gpu
DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=GPU)]
STEPS, EVERY = 24, 6

pytestmark = pytest.mark.filterwarnings("ignore")


def text_model() -> tuple[nn.Module, Callable[[torch.Generator], dict[str, torch.Tensor]]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=3
    )
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0

    def batch(source: torch.Generator) -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.randint(0, 64, (4, 8), generator=source),
            "labels": torch.randint(0, 3, (4,), generator=source),
        }

    return transformers.BertForSequenceClassification(config), batch


def image_model() -> tuple[nn.Module, Callable[[torch.Generator], dict[str, torch.Tensor]]]:
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnet10t", num_classes=3, pretrained=False)

    def batch(source: torch.Generator) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(4, 3, 32, 32, generator=source), "labels": torch.randint(0, 3, (4,), generator=source)}

    return model, batch


class Trainer:
    """What people write: it counts, logs and keeps an average of the weights, beside the two programs that are jitted."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model = model.to(device)
        self.average = copy.deepcopy(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        warm_up = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=5)
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.scheduler = torch.optim.lr_scheduler.SequentialLR(self.optimizer, [warm_up, decay], [5])
        self.step_count = 0
        self.history: list[float] = []
        self.best: float | None = None

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if "input_ids" in batch:
            found: torch.Tensor = self.model(**batch).loss
            return found
        return nn.functional.cross_entropy(self.model(batch["x"]), batch["labels"])

    def train_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        with torch.no_grad():
            for mean, weight in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(weight, 0.1)
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.loss(batch)

    def run(self, train: Any, evaluate: Any, batches: Iterator[dict[str, torch.Tensor]]) -> None:
        for _ in range(STEPS):
            loss = train(next(batches))
            self.scheduler.step()
            self.step_count += 1
            self.history.append(float(loss))
            if self.step_count % EVERY == 0:
                self.model.eval()
                found = float(evaluate(next(batches)))
                self.best = found if self.best is None else min(self.best, found)
                self.history.append(found)
                self.model.train()


def batches(
    make: Callable[[torch.Generator], dict[str, torch.Tensor]], device: torch.device
) -> Iterator[dict[str, Any]]:
    source = torch.Generator().manual_seed(0)
    while True:
        yield {name: value.to(device) for name, value in make(source).items()}


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("kind", [text_model, image_model], ids=["transformers", "timm"])
def test_an_everyday_loop_replays(kind: Any, device: torch.device) -> None:
    torch.manual_seed(0)
    model, make = kind()
    eager = Trainer(copy.deepcopy(model), device)
    eager.run(eager.train_step, eager.evaluate, batches(make, device))
    ours = Trainer(model, device)
    lower: Any = "aten" if device == CPU else "auto"
    train = treeplay.jit(ours.train_step, lower=lower, on_refusal="raise")
    evaluate = treeplay.jit(ours.evaluate, lower=lower, on_refusal="raise")
    ours.run(train, evaluate, batches(make, device))
    # Compiled kernels round otherwise, and AdamW follows the sign of a gradient.
    close = {"rtol": 2e-3, "atol": 2e-4} if device == CPU else {"rtol": 5e-2, "atol": 5e-3}
    torch.testing.assert_close(torch.tensor(ours.history), torch.tensor(eager.history), **close)
    for jitted, calls in ((train, STEPS), (evaluate, STEPS // EVERY)):
        statistics = jitted.statistics()
        assert statistics.refusals == 0
        assert 1 <= statistics.recordings <= 3, jitted.explain()
        warm_ups = statistics.not_replayed.get("warm-up", 0)  # one for each recording of a GPU
        assert statistics.replays >= calls - 4 - warm_ups, jitted.explain()
        assert warm_ups == (statistics.recordings if device != CPU else 0), jitted.explain()
