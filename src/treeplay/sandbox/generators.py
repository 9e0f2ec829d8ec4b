"""torch's default generators belong to the whole process: what compiles is to leave them alone.

What compiles draws the inputs that it times kernels on. It is not to be seen in the default generators, and what other threads
draw meanwhile is to be seen: so it is given other generators, for its own thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch

from treeplay.observe.progress import own_threads
from treeplay.observe.rng import default_generators, moving
from treeplay.sandbox.collection import no_collection
from treeplay.torch_seam.dynamo import random_states_left_alone
from treeplay.torch_seam.modes import is_dispatched
from treeplay.torch_seam.patched import Shared, all_wanted


def has_company() -> bool:
    """Whether another thread of this process runs Python: it may draw, too."""
    # Python 3.11 lists them under a lock that it takes again if it collects a `threading.local` meanwhile: it would hang.
    with no_collection():
        threads = {*sys._current_frames()}  # no frame is kept: this one would keep itself
    return bool(threads - own_threads - {get_ident()})


@contextmanager
def unmoved() -> Iterator[None]:
    """When this ends, the default generators stand where they stood, but for what other threads did to them.

    What this thread draws inside by functions of torch's comes from generators of its own. What it draws otherwise, or seeds,
    is put back where no other thread is that may have done it."""
    is_shared = has_company()
    with moving:
        before = [(generator, generator.get_state()) for generator in default_generators()]
    try:
        with random_states_left_alone(), all_wanted(_DRAWING):
            yield
    finally:
        # Again: a thread may have come, or gone, meanwhile.
        is_shared |= has_company()
        with moving:
            for generator, state in before if not is_shared else ():
                generator.set_state(state)


def _apart(fill: str | None = None) -> Callable[[Any, Callable[[], bool]], Any]:
    """What makes the stand-in for a function that draws a tensor; for one that draws it like another, by the method `fill`."""

    def make(original: Any, is_wanted: Callable[[], bool]) -> Any:
        def draw(*args: Any, **kwargs: Any) -> Any:
            if not is_wanted() or is_dispatched() or kwargs.get("generator") is not None:
                return original(*args, **kwargs)
            like = args[0] if fill is not None else None
            device = torch.device(kwargs.get("device") or (torch.get_default_device() if like is None else like.device))
            if device.type not in ("cpu", "cuda"):
                return original(*args, **kwargs)
            generator = torch.Generator(device)
            generator.seed()  # by random bits of the system
            if fill is None:
                return original(*args, **kwargs, generator=generator)
            return getattr(torch.empty_like(*args, **kwargs), fill)(generator=generator)

        return draw

    return make


_DRAWING = (
    *(Shared(torch, name, _apart()) for name in ("rand", "randn", "randint", "randperm")),
    Shared(torch, "rand_like", _apart("uniform_")),
    Shared(torch, "randn_like", _apart("normal_")),
)
