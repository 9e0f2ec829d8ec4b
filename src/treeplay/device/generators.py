"""torch's default generators belong to the whole process: one thread at a time puts another state into one.

A capture swaps a device's generator for a moment; a trace in another thread gives generators seeds of its own. What one of them
sets while the other has swapped would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from treeplay.observe.locks import shared_lock

moving = shared_lock()
"""Held for the few statements in which a generator's state is replaced or seeded."""


@contextmanager
def unmoved() -> Iterator[None]:
    """When this ends, the default generators of GPUs stand where they stood: what is measured inside may draw its inputs.

    The CPU's is left alone: nothing is measured there, and other threads may draw from it."""
    with moving:
        before = [(generator, generator.get_state()) for generator in default_generators()[1:]]
    try:
        yield
    finally:
        with moving:
            for generator, state in before:
                if not torch.equal(generator.get_state(), state):
                    generator.set_state(state)


def default_generators() -> tuple[torch.Generator, ...]:
    """The CPU's, and those of the GPUs if this process uses any."""
    return (torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ()))
