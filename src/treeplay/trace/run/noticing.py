"""Which modules a traced program calls and which optimizers it steps, told by torch's global hooks."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from threading import get_ident
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from treeplay.torch_seam.layers import call_hook
from treeplay.trace.traced import TracedRun
from treeplay.trace.training.hooks import ours


@contextlib.contextmanager
def noticing(run: TracedRun) -> Iterator[None]:
    """Note which modules are called and which optimizers step.

    The hooks are global: other threads run them too, and torch's frames hold the last one for as long as a module or an
    optimizer then takes."""
    thread, running = get_ident(), weakref.ref(run)

    def here() -> TracedRun | None:
        return running() if get_ident() == thread else None

    def on_call(module: torch.nn.Module, _: Any) -> None:
        run = here()
        if run is not None:
            run.called[id(module)] = module

    def on_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        run = here()
        if run is None:
            return
        run.stepped[id(optimizer)] = optimizer
        if not any(optimizer is known for known in run.found.optimizers):
            raise run.tracer.refuse(
                f"{type(optimizer).__name__}.step",
                "the optimizer is not found in the program's closure, globals or `self`",
                "make the optimizer reachable there, so that its state and its learning rate can be followed",
            )

    with call_hook(ours(on_call)):
        handle = register_optimizer_step_pre_hook(ours(on_step))
        try:
            yield
        finally:
            handle.remove()
