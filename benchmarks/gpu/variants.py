"""The ways to run a program on a GPU. Each makes its own model from the same seed and is called in the same way.

eager            plain PyTorch, with the fastest optimizer it has
compile          the model and the loss under torch.compile
reduce-overhead  the same with its CUDA graphs; each step marked, kept results cloned, as its documentation asks
floor            the kernels of `compile` in one graph captured by hand (see floor.py)
backend          the model and the loss under torch.compile(backend="treeplay"), with the optimizer of the peers
treeplay         the program as a user writes it, with the optimizer as it comes, under treeplay.jit
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import treeplay
from benchmarks.gpu.programs import Program
from treeplay.torch_compile import backend

Call = Callable[..., torch.Tensor]
SEED = 0


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a program. `call` is what is timed; `check` gives a result that may be kept and compared."""

    call: Call
    check: Call
    facts: dict[str, Any] = field(default_factory=dict)


class WithLoss(nn.Module):
    """A model and its loss as one module, so that a compiler sees both."""

    def __init__(self, model: nn.Module, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of one batch."""
        return self.loss(self.model(x), y)


def make_model(program: Program, device: torch.device) -> nn.Module:
    """The model with its first weights."""
    torch.manual_seed(SEED)
    model = program.make_model().to(device).train(program.is_training)
    return model.to(torch.bfloat16) if program.precision == "bfloat16" else model


def fast_optimizer(program: Program, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer with the options that make it fastest outside of a recording, and fit for one."""
    if program.optimizer == "SGD":
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=True)
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True, capturable=True)


def plain_optimizer(program: Program, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer as it comes."""
    if program.optimizer == "SGD":
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=1e-4)


def make_eager(program: Program, device: torch.device) -> Variant:
    """Plain PyTorch."""
    return _peer(program, device, lambda module: module)


def make_compiled(program: Program, device: torch.device) -> Variant:
    """Compiled kernels, launched one by one."""
    return _peer(program, device, torch.compile)


def make_reduce_overhead(program: Program, device: torch.device) -> Variant:
    """Compiled kernels in CUDA graph trees, used so that kept results stay right."""
    plain = _peer(program, device, lambda module: torch.compile(module, mode="reduce-overhead")).call
    if not program.is_training and program.kept == 0:
        return Variant(plain, lambda *batch: plain(*batch).clone())

    call = marked(plain)
    return Variant(call, call)


def marked(call: Call) -> Call:
    """A call under `reduce-overhead` whose result may be kept: its step is marked, the result is cloned."""

    def marked_call(*batch: Any) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return call(*batch).detach().clone()

    return marked_call


def make_backend(program: Program, device: torch.device) -> Variant:
    """Compiled kernels in recordings of forward and backward; results stay right as they are."""
    return _peer(program, device, lambda module: torch.compile(module, backend=backend))


def make_treeplay(program: Program, device: torch.device) -> Variant:
    """The whole program under `treeplay.jit`; raises `Refusal` rather than run eagerly."""
    treeplay.settings.tiers = "exact"  # what is timed is what stays
    model = make_model(program, device)
    if not program.is_training:
        jitted: Any = treeplay.jit(model, on_refusal="raise")
        return Variant(jitted, jitted, {"program": jitted})
    optimizer, loss_of = plain_optimizer(program, model.parameters()), program.loss

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    jitted = treeplay.jit(step, on_refusal="raise")
    return Variant(jitted, jitted, {"program": jitted})


def _peer(program: Program, device: torch.device, prepare: Callable[[nn.Module], Call]) -> Variant:
    model = make_model(program, device)
    call = make_step(program, model, prepare) if program.is_training else prepare(model)
    return Variant(call, call)


def make_step(program: Program, model: nn.Module, prepare: Callable[[nn.Module], Call]) -> Call:
    """A whole training step over what `prepare` makes of the model with its loss."""
    optimizer, forward = fast_optimizer(program, model.parameters()), prepare(WithLoss(model, program.loss))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        return loss

    return step
