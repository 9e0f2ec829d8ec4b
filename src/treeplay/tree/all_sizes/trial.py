"""Whether a recording for all sizes is faster than its program: for each set of sizes, calls go to the two in turn.

sizes A: program, recording     sizes B: program, recording     sizes A: program, ...     ─▶ it stays, or it goes

Each call runs once, by one of the two, and is timed. Only calls of the same sizes are compared, for others take longer or
shorter. Where sizes hardly repeat there is nothing to compare, and the recording stays. To lose takes more calls than to win:
while the machine is busy with something else, a fast one may seem slow for a moment, and what is lost is lost for long.
"""

from __future__ import annotations

import statistics
from collections import defaultdict

from treeplay.tree.worth.pace import MARGIN

_ENOUGH = 6  # calls of each, of the same sizes
_ENOUGH_TO_LOSE = 18
_UNTIMED = 2  # calls of the recording, which load code
_MOST_UNPAIRED = 12  # sizes of which only a call of the program was timed
_MOST_CALLS = 48  # after which it is decided by what is known

Sizes = tuple[int, ...]


class SizesTrial:
    """Of one recording. For threads that hold the program's lock."""

    def __init__(self) -> None:
        self._program: dict[Sizes, list[float]] = defaultdict(list)
        self._recording: dict[Sizes, list[float]] = defaultdict(list)
        self._calls = 0

    def is_for_program(self, sizes: Sizes) -> bool:
        """Whether the next call with these sizes is to run the program as it is."""
        if self._calls < _UNTIMED or len(self._program[sizes]) > len(self._recording[sizes]):
            return False
        unpaired = sum(len(times) > len(self._recording[each]) for each, times in self._program.items())
        return unpaired < _MOST_UNPAIRED

    def took(self, seconds: float, sizes: Sizes, *, is_program: bool) -> None:
        """Note how long a call with these sizes took, of the program or of the recording."""
        if self._calls >= _UNTIMED:
            (self._program if is_program else self._recording)[sizes].append(seconds)
        self._calls += 1

    def verdict(self) -> tuple[bool, str] | None:
        """Whether the recording stays, and what was found; None if that is not known yet."""
        pairs = {sizes: min(len(times), len(self._recording[sizes])) for sizes, times in self._program.items()}
        compared = sum(pairs.values())
        if compared < _ENOUGH:
            return None if self._calls < _MOST_CALLS else (True, "its sizes hardly repeat")
        ratios = [
            statistics.median(self._recording[sizes]) / statistics.median(self._program[sizes])
            for sizes, count in pairs.items()
            if count
        ]
        share = statistics.median(ratios)  # one outlier decides nothing
        is_faster = share < 1 - MARGIN
        if not is_faster and compared < _ENOUGH_TO_LOSE and self._calls < _MOST_CALLS:
            return None
        return is_faster, f"a call takes {share:.2f} of what the program as it is takes"
