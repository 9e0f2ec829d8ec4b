"""Compiling leaves no mark on the caller: random state, modes, autocast and device are afterwards what they were."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch

from treeplay.sandbox.generators import unmoved
from treeplay.torch_seam import modes
from treeplay.torch_seam.flags import autocast_state, set_autocast_state
from treeplay.torch_seam.traced_apart import traced_in_this_thread

MIN_RECURSION_LIMIT = 2000
"""Graphs are walked recursively; Python's own limit of 1000 is too low for deep ones."""


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Run a block of compilation: what it changes is put back, and the caller's dispatch modes do not see it."""
    raise_recursion_limit()
    with contextlib.ExitStack() as stack:
        stack.enter_context(unmoved())
        stack.enter_context(traced_in_this_thread())
        stack.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        stack.callback(set_autocast_state, autocast_state())
        if torch.cuda.is_initialized():
            stack.callback(torch.cuda.set_device, torch.cuda.current_device())
        stack.enter_context(modes.without_dispatch_modes())
        stack.enter_context(outside_inference_mode())
        yield


@contextlib.contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave inference mode for a block, with the grad mode as it is. Dynamo compiles outside of it; what is compiled in a later
    call would take the tensors that it traces for tensors of the mode, and a view of a parameter for one without history."""
    is_grad_enabled = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(is_grad_enabled):
        yield


def raise_recursion_limit() -> None:
    """Raise Python's recursion limit to what compiling needs; a higher one stays."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), MIN_RECURSION_LIMIT))
