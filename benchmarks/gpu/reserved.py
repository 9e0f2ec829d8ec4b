"""The memory that a process reserves on a GPU: torch's and the scratch of recordings, each byte once.

While a capture lasts, torch counts addresses that have no memory behind them; while work runs on lent scratch, torch counts
that scratch once more. Both are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from treeplay.device.cuda import recording
from treeplay.device.cuda.memory.lent import LentScratch
from treeplay.device.cuda.memory.scratch import Scratch
from treeplay.torch_seam import allocator


class ReservedMemory:
    """`most` is the most that there was, up to the last `look`. One for a process."""

    def __init__(self, scratch: Scratch) -> None:
        self.most = 0
        self._scratch = scratch
        recording.capture_work = self._captures(recording.capture_work)
        LentScratch.run = self._lends(LentScratch.run)  # type: ignore[method-assign]
        LentScratch.close = _forgets_peak(LentScratch.close)  # type: ignore[method-assign]
        torch.cuda.reset_peak_memory_stats()

    def look(self) -> None:
        """Take in what was reserved since the last look."""
        self._note(torch.cuda.max_memory_reserved() + self._scratch.nbytes)

    def begin_anew(self) -> None:
        """Forget what was seen."""
        torch.cuda.reset_peak_memory_stats()
        self.most = 0

    def _note(self, nbytes: int) -> None:
        self.most = max(self.most, nbytes)
        torch.cuda.reset_peak_memory_stats()

    def _captures(self, capture: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self.look()
            captured = capture(*args)  # executes nothing, and has its scratch at the end
            self._note(torch.cuda.memory_reserved() + self._scratch.nbytes)
            return captured

        return counted

    def _lends(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def counted(lent: LentScratch, work: Any) -> Any:
            self.look()
            lent_bytes = lent.end - lent.start
            made = run(lent, work)
            more = lent.end - lent.start - lent_bytes
            segments = allocator.allocator_state().segments_of(lent.pool.token)
            theirs = sum(int(segment["total_size"]) for segment in segments)
            self._note(torch.cuda.memory_reserved() - theirs + self._scratch.nbytes + more)
            return made

        return counted


def _forgets_peak(close: Callable[..., bool]) -> Callable[..., bool]:
    """What was lent is no longer among what torch counts."""

    def counted(lent: LentScratch) -> bool:
        is_closed = close(lent)
        if is_closed:
            torch.cuda.reset_peak_memory_stats()
        return is_closed

    return counted
