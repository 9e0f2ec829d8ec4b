"""A module of Lightning: the network inside is jitted, and Lightning calls backward and the optimizer.

pip install 'treeplay[models]'; python examples/lightning_module.py
"""

from collections.abc import Callable
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import treeplay


class Classifier(lightning.LightningModule):
    def __init__(self, jit: Callable[..., Any]) -> None:
        super().__init__()
        # Lightning calls `training_step` with the number of the batch, and never the module itself. So it is the network that
        # is jitted, forward and backward.
        self.net = jit(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3)))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def train(jit: Callable[..., Any]) -> Classifier:
    torch.manual_seed(0)
    module = Classifier(jit)
    data = TensorDataset(torch.randn(80, 4), torch.randint(3, (80,)))
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    lightning.Trainer(max_epochs=2, **silent).fit(module, DataLoader(data, batch_size=8))
    return module


module = train(treeplay.jit)
eager = train(lambda program: program)
torch.testing.assert_close([*module.parameters()], [*eager.parameters()], rtol=1e-3, atol=1e-4)
found = module.net.statistics()
print(f"replayed {found.replays} of {found.calls} calls")
