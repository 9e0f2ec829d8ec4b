"""Who holds an object: somebody of the program, or guards alone."""

from __future__ import annotations

import gc
from typing import Any


def one_would_be_gone(found: list[Any], own: set[int], guarded: set[int]) -> bool:
    """Whether one of these objects is held by nothing but what is in `own`, and what is in `guarded` and held by that alone.

    The list that they come in is one of `own`."""
    # One walk over the heap for all of them: each takes tens of milliseconds.
    others = [referrer for referrer in gc.get_referrers(*found) if id(referrer) not in own | guarded]
    held = {*map(id, gc.get_referents(*others))} if others else set()
    doubtful = [value for value in found if id(value) not in held]
    own |= {id(others), id(doubtful)}
    while doubtful:  # here and below, a generator or a tuple of arguments would hold what is asked for
        if not _is_held(doubtful.pop(), own, guarded):
            return True
    return False


def _is_held(value: Any, own: set[int], guarded: set[int]) -> bool:
    """Whether something holds `value` that is neither in `own` nor, of what is in `guarded`, held by that alone."""
    found = gc.get_referrers(value)
    others = [referrer for referrer in found if id(referrer) not in own]
    if not guarded.issuperset(map(id, others)):
        return True
    own = own | {id(found), id(others), id(value)}
    while others:
        if _is_held(others.pop(), own, guarded):
            return True
    return False
