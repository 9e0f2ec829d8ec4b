"""A backward whose caller is under autocast, as eager's would be: its operators are cast.

with torch.autocast(...): program(x).backward()      the compiled backward, where autocast changes nothing in it;
                                                     else the gradients are computed from the inputs again;
                                                     the compiled backward too, with a warning, where they cannot be
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treeplay.observe import warn_once
from treeplay.torch_seam import flags
from treeplay.torch_seam.flags import AutocastDtypes
from treeplay.wrap.aot.calls.again import Onward


class UnderAutocast:
    """What a node's backward does under autocast: the gradients, or None where the compiled backward gives them.

    `harmless`: an autocast that is known to change nothing. Of others that is found out once, when one is met."""

    def __init__(self, onward: Onward, harmless: AutocastDtypes) -> None:
        self._onward = onward
        self._is_harmless = {harmless: True}

    def __call__(self, ctx: Any, gradients: Sequence[Any]) -> tuple[Any, ...] | None:
        now = flags.autocast_dtypes()
        is_harmless = self._is_harmless.get(now)
        if is_harmless is None:
            is_harmless = self._onward.is_unchanged_by(now, ctx)
            if is_harmless is not None:  # else another call may tell
                self._is_harmless[now] = is_harmless
        found = self._onward(ctx, gradients) if is_harmless is False else None
        if found is None and not is_harmless:
            why = f", since {ctx.why}" if ctx.why else ""
            warn_once(
                "treeplay computes the backward of a compiled function as outside of torch.autocast, in which it was called: "
                f"the gradients cannot be computed again{why}. Fix: leave torch.autocast before you call backward"
            )
        return found
