"""A training step with Accelerate: wrapped optimizers and `accelerator.backward` are a part of the recording.

pip install 'treeplay[models]'; python examples/accelerate_step.py
"""

from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

import treeplay


def train(jit: Callable[..., Any]) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertForSequenceClassification(BertConfig(vocab_size=64, **sizes, **rates))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    texts = [{"input_ids": torch.randint(64, (12,)), "labels": torch.tensor(at % 2)} for at in range(80)]
    accelerator = Accelerator()
    model, optimizer, schedule, loader = accelerator.prepare(
        model, optimizer, schedule, DataLoader(texts, batch_size=4, drop_last=True)
    )

    @jit
    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for batch in loader:
        step(batch)
        schedule.step()  # after the step: it changes Python's numbers
    return model, step


model, step = train(treeplay.jit)
eager, _ = train(lambda program: program)
torch.testing.assert_close([*model.parameters()], [*eager.parameters()], rtol=1e-3, atol=1e-4)
print(f"replayed {step.statistics().replays} of {step.statistics().calls} calls")
