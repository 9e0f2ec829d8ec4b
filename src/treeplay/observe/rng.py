"""Random state: read it, put it back, or keep it as it is around a block."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.errors import ArgumentError, TreeplayError
from treeplay.torch_seam.modes import innermost_transform


class TransformError(TreeplayError, RuntimeError):
    """Something that needs real tensors was asked for inside a function transform, where they are wrapped."""


@dataclass(frozen=True, slots=True, eq=False)
class RngState:
    """The state of the generators at one moment; None for those that were not in use or not asked for."""

    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...] | None
    python: tuple[Any, ...] | None
    numpy: Any

    def __str__(self) -> str:
        return f"random state of cpu and {len(self.cuda or ())} cuda devices"


def read_rng(*, python: bool = False, numpy: bool = False) -> RngState:
    """The state of torch's default generators: CPU, and every CUDA device if CUDA is in use already.

    On request also that of Python's and NumPy's global generator. Creates no CUDA context. Raises
    `TransformError` inside a function transform, `ArgumentError` if NumPy is asked for and not installed.
    """
    if innermost_transform() is not None:
        raise TransformError(
            "the random state cannot be kept inside a function transform (vmap, grad, ...), where tensors "
            "are wrapped: compile cannot run there; compile the transformed function instead"
        )
    # The generators are asked directly: torch's functions clone the state, which an active mode would catch.
    return RngState(
        cpu=torch.default_generator.get_state(),
        cuda=tuple(generator.get_state() for generator in _cuda_generators()) if _has_cuda() else None,
        python=random.getstate() if python else None,
        numpy=_numpy_random().get_state() if numpy else None,
    )


def write_rng(state: RngState) -> None:
    """Put the generators back to `state`.

    CUDA devices that were not in use then are put back to the start of their sequence (their seed stays).
    """
    torch.default_generator.set_state(state.cpu)
    if state.cuda is not None:
        for generator, saved in zip(_cuda_generators(), state.cuda, strict=True):
            generator.set_state(saved)
    elif _has_cuda():
        for generator in _cuda_generators():
            generator.set_offset(0)
    if state.python is not None:
        random.setstate(state.python)
    if state.numpy is not None:
        _numpy_random().set_state(state.numpy)


def seed_rng(seed: int) -> None:
    """Seed what `read_rng` reads; a CUDA that is not in use yet is left no seed to start from."""
    torch.default_generator.manual_seed(seed)
    for generator in _cuda_generators() if _has_cuda() else ():
        generator.manual_seed(seed)


@contextmanager
def keep_rng(*, python: bool = False, numpy: bool = False) -> Iterator[None]:
    """Put the random state back on exit, also after an exception; may be nested, or put on a function.

    Covers what `read_rng` reads, and raises what it raises.
    """
    state = read_rng(python=python, numpy=numpy)
    try:
        yield
    finally:
        write_rng(state)


def _has_cuda() -> bool:
    return bool(torch.cuda.is_initialized())


def _cuda_generators() -> tuple[torch.Generator, ...]:
    return tuple(torch.cuda.default_generators)


def _numpy_random() -> Any:
    try:
        return importlib.import_module("numpy.random")
    except ImportError:
        raise ArgumentError("numpy=True asks for NumPy's random state, but NumPy is not installed") from None
