"""Random state: read it, put it back, or keep it as it is around a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from treeplay.errors import TreeplayError
from treeplay.locks import shared_lock
from treeplay.torch_seam.modes import innermost_transform

moving = shared_lock()
"""Held for the few statements in which a generator's state is read to be put back later, replaced or seeded.

The default generators belong to the whole process: a capture swaps a device's for a moment, and a trace in another thread
gives them seeds of its own. What is read or set meanwhile would be the wrong state, or lost.
"""


class TransformError(TreeplayError, RuntimeError):
    """Something that needs real tensors was asked for inside a function transform, where they are wrapped."""


@dataclass(frozen=True, slots=True, eq=False)
class RngState:
    """The state of torch's default generators at one moment; `cuda` is None where CUDA was not in use."""

    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...] | None


def default_generators() -> tuple[torch.Generator, ...]:
    """The CPU's, and those of the GPUs if this process uses any."""
    return (torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ()))


def read_rng() -> RngState:
    """The state of torch's default generators: CPU, and every CUDA device if CUDA is in use already.

    Creates no CUDA context. Raises `TransformError` inside a function transform.
    """
    if innermost_transform() is not None:
        raise TransformError(
            "the random state cannot be kept inside a function transform (vmap, grad, ...), where tensors "
            "are wrapped: compile cannot run there; compile the transformed function instead"
        )
    # The generators are asked directly: torch's functions clone the state, which an active mode would catch.
    with moving:
        cpu, *cuda = (generator.get_state() for generator in default_generators())
    return RngState(cpu, tuple(cuda) if torch.cuda.is_initialized() else None)


def write_rng(state: RngState) -> None:
    """Put the generators back to `state`.

    CUDA devices that were not in use then are put back to the start of their sequence (their seed stays).
    """
    cpu, *cuda = default_generators()
    with moving:
        cpu.set_state(state.cpu)
        if state.cuda is None:
            for generator in cuda:
                generator.set_offset(0)
        else:
            for generator, saved in zip(cuda, state.cuda, strict=True):
                generator.set_state(saved)


@contextmanager
def keep_rng() -> Iterator[None]:
    """Put the random state back on exit, also after an exception; may be nested, or put on a function.

    Covers what `read_rng` reads, and raises what it raises.
    """
    state = read_rng()
    try:
        yield
    finally:
        write_rng(state)
