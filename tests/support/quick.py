"""What torch does beside the point of a test, and what would take a good part of the time, is left out."""

from __future__ import annotations

import gc
import logging
from functools import cache

import torch


@cache
def leave_out_timing_of_guards() -> None:
    """Dynamo times the guards of each frame that it compiles, for its log: it empties the processor's caches first, which is
    most of what a small frame takes."""
    import torch._dynamo.guards as guards

    if hasattr(guards, "profile_guard_manager"):  # its place is private
        guards.profile_guard_manager = lambda *args: 0.0


@cache
def leave_out_structured_trace() -> None:
    """torch prints each graph, guard and time as JSON once somebody listens to that log. pytest listens to all that do not hand
    their records on to the root."""
    log = logging.getLogger("torch.__trace")  # its name is private
    log.propagate = True
    log.handlers = [handler for handler in log.handlers if not type(handler).__module__.startswith("_pytest.")]


@cache
def leave_out_of_collections(tier: str) -> None:
    """What is loaded before the first test of `tier` stays as long as the process: hundreds of thousands of objects, through
    which each full collection would look."""
    gc.collect()
    gc.freeze()


def seed(number: int) -> None:
    """As `torch.manual_seed`, which notes the stack of its caller once for each kind of device that nobody has used yet."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)
