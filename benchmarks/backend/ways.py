"""The ways to run a model, each used as its documentation says: a forward for inference, and a whole training step.

eager            plain PyTorch
compile          torch.compile
reduce-overhead  torch.compile with CUDA graphs; each call is marked as a step, its result is cloned
backend          torch.compile(backend="treeplay")
jit              treeplay.jit: of the model for inference, of the whole step for training
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

import treeplay
from benchmarks.backend.model import Feed, Loss
from treeplay.torch_compile import backend

Call = Callable[[Feed], Any]


@dataclass(frozen=True, slots=True)
class Way:
    """How a model is prepared, and how a whole step around it is; `is_marked`: calls are marked and results cloned."""

    name: str
    of_model: Callable[[nn.Module], Any] = lambda model: model
    of_step: Callable[[Any], Any] | None = None
    is_marked: bool = False

    def forward(self, model: nn.Module) -> Call:
        """Inference on a feed; without gradients if the caller turns them off."""
        run = self.of_model(model)
        return self._marked(lambda feed: run(**feed.inputs))

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Loss) -> Call:
        """A training step on a feed; gives the loss."""
        run: Any = model if self.of_step is not None else self.of_model(model)

        def step(inputs: dict[str, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(run(**inputs), target)
            loss.backward()
            optimizer.step()
            return loss.detach()

        whole: Any = step if self.of_step is None else self.of_step(step)
        return self._marked(lambda feed: whole(feed.inputs, feed.target))

    def _marked(self, call: Call) -> Call:
        if not self.is_marked:
            return call

        def marked(feed: Feed) -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, call(feed))

        return marked


def treeplay_backend(inner: str = "inductor") -> Way:
    """`torch.compile` with treeplay behind it."""
    options = {"inner": inner}
    return Way("backend", lambda model: torch.compile(model, backend=backend, options=options))


def treeplay_jit(lower: Any = "auto") -> Way:
    """`treeplay.jit`; raises `Refusal` rather than run eagerly."""

    def jit(program: Any) -> Any:
        treeplay.settings.tiers = "exact"  # what is timed is what stays
        return treeplay.jit(program, lower=lower, on_refusal="raise")

    return Way("jit", jit, jit)


EAGER = Way("eager")
WAYS = {
    way.name: way
    for way in (
        EAGER,
        Way("compile", torch.compile),
        Way("reduce-overhead", lambda model: torch.compile(model, mode="reduce-overhead"), is_marked=True),
        treeplay_backend(),
        treeplay_jit(),
    )
}
