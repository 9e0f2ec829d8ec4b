"""A backward whose caller is under autocast, as eager's would be: its operators are cast.

with torch.autocast(...): program(x).backward()      the compiled backward, where autocast changes nothing in it;
                                                     else the gradients are computed from the inputs again
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treeplay.errors import UsageError
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
        if now not in self._is_harmless:
            self._is_harmless[now] = self._onward.is_unchanged_by(now, ctx)
        if self._is_harmless[now]:
            return None
        found = self._onward(ctx, gradients)
        if found is None:
            raise UsageError(
                "the backward of a compiled function ran under autocast, which changes its gradients, and they cannot be "
                f"computed again, since {ctx.why}. Fix: leave torch.autocast before you call backward, as torch advises"
            )
        return found
