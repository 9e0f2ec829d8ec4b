"""What torch does beside the point of a test, and what would take a good part of the time, is left out."""

from __future__ import annotations

from functools import cache


@cache
def leave_out_timing_of_guards() -> None:
    """Dynamo times the guards of each frame that it compiles, for its log: it empties the processor's caches first, which is
    most of what a small frame takes."""
    import torch._dynamo.guards as guards

    if hasattr(guards, "profile_guard_manager"):  # its place is private
        guards.profile_guard_manager = lambda *args: 0.0
