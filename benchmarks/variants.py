"""The ways to run a program: eager, two with `torch.compile`, and treeplay. Each makes its own model from the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import treeplay
from benchmarks.programs import Batch, Program

Run = Callable[..., torch.Tensor]
SEED = 0


def make_eager(program: Program) -> Run:
    """Plain PyTorch."""
    model = _model(program)
    return _step(program, model, model) if program.is_training else model


def make_compiled(program: Program) -> Run:
    """The model under `torch.compile`."""
    model = _model(program)
    compiled = torch.compile(model)
    return _step(program, model, compiled) if program.is_training else compiled


def make_compiled_with_optimizer(program: Program) -> Run:
    """The model and the optimizer's step, each under `torch.compile`."""
    model = _model(program)
    return _step(program, model, torch.compile(model), compile_update=True)


def make_treeplay(program: Program) -> Run:
    """The whole program under `treeplay.jit`; raises `Refusal` rather than run eagerly."""
    model = _model(program)
    plain = _step(program, model, model) if program.is_training else model
    treeplay.settings.tiers = "exact"  # what is timed is what stays
    return treeplay.jit(plain, on_refusal="raise")


def variants_of(program: Program) -> dict[str, Callable[[Program], Run]]:
    """The variants that make sense for `program`, eager first, treeplay last."""
    variants = {"eager": make_eager, "compile": make_compiled}
    if program.is_training:
        variants["compile+opt"] = make_compiled_with_optimizer
    return {**variants, "treeplay": make_treeplay}


def strongest_peer(program: Program) -> str:
    """The peer that compiles as much as it can."""
    return "compile+opt" if program.is_training else "compile"


def make_batches(program: Program, count: int) -> list[Batch]:
    """Batches that all variants see in the same order."""
    torch.manual_seed(SEED + 1)
    return [program.make_batch() for _ in range(count)]


def _model(program: Program) -> nn.Module:
    torch.manual_seed(SEED)
    return program.make_model().train(program.is_training)


def _step(program: Program, model: nn.Module, forward: Any, *, compile_update: bool = False) -> Run:
    """One whole training step: gradients cleared, forward, loss, backward, update."""
    if program.make_optimizer is None:
        raise ValueError(f"{program.name} has no optimizer")
    optimizer, loss_of = program.make_optimizer(model.parameters()), program.loss
    update: Callable[[], Any] = torch.compile(optimizer.step) if compile_update else optimizer.step

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(forward(x), y)
        loss.backward()
        update()
        return loss

    return step
