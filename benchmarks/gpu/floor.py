"""The floor: the compiled kernels of a program in one CUDA graph, captured by hand and replayed bare.

warm up on a side stream ─▶ capture forward, backward, update ─▶ put first weights back ─▶ replay

Inputs are read and results written where they were captured. The capture's seconds are kept: they are what one plain
capture costs, beside what treeplay's recording costs.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.programs import Batch, Program
from benchmarks.gpu.variants import Call, Variant, WithLoss, fast_optimizer, make_model

_WARM_UPS = 3


def make_floor(program: Program, device: torch.device) -> Variant:
    """Capture the program on a batch of its own."""
    torch.manual_seed(1)
    inputs = program.make_batch(device)
    model = make_model(program, device)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = fast_optimizer(program, model.parameters()) if program.is_training else None
    run, clear = _work(program, model, optimizer)
    start = perf_counter()
    _warm_up(lambda: run(*inputs))
    warm = perf_counter()
    clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(*inputs)
    torch.cuda.synchronize()
    seconds = {"warm_up_seconds": warm - start, "capture_seconds": perf_counter() - warm}
    _start_again(model, first, optimizer)
    facts = {**seconds, "owners": (model, optimizer)}  # the graph reads their memory and does not keep it
    return _replayed(graph, inputs, result, facts)


def _work(
    program: Program, model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> tuple[Call, Callable[[], None]]:
    """The program's device work, and what clears gradients so that a capture owns them."""
    if optimizer is None:
        return torch.compile(model), lambda: None
    forward: Call = torch.compile(WithLoss(model, program.loss))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, optimizer.zero_grad


def _warm_up(run: Callable[[], object]) -> None:
    """Compile and let libraries make their handles, off the default stream as a capture wants it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


@torch.no_grad()
def _start_again(model: nn.Module, first: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer | None) -> None:
    """First weights and an empty optimizer, at the addresses that were captured."""
    for name, value in model.state_dict().items():
        value.copy_(first[name])
    for state in optimizer.state.values() if optimizer is not None else ():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()


def _replayed(graph: torch.cuda.CUDAGraph, inputs: Batch, result: torch.Tensor, facts: dict[str, Any]) -> Variant:
    def call(*batch: torch.Tensor) -> torch.Tensor:
        graph.replay()
        return result

    def check(*batch: torch.Tensor) -> torch.Tensor:
        for fixed, value in zip(inputs, batch, strict=True):
            fixed.copy_(value)
        graph.replay()
        return result.clone()

    return Variant(call, check, facts)
