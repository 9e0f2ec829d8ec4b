"""What calls take: how each is timed, and by how much one way of running them has to be faster than another."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType

from treeplay.device.protocol import Stopwatch

MARGIN = 0.02
"""The share of the program's time by which a recording has to be faster in the end."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What a call takes: of its thread, and of the device. On the CPU, these are the same thing."""

    host: float
    device: float

    @classmethod
    def of(cls, timings: Iterable[Timing]) -> Pace | None:
        """The median of those that could be timed. Of two, the faster: only outliers are slow."""
        known = [(timing.host, seconds) for timing in timings if (seconds := timing.device())]
        host, device = ([times[which] for times in known] for which in (0, 1))
        return cls(statistics.median_low(host), statistics.median_low(device)) if known else None

    @property
    def seconds(self) -> float:
        """What a call costs where one follows the other: a GPU works on one while its host issues the next."""
        return max(self.host, self.device)

    def beats(self, other: Pace, margin: float) -> bool:
        """Whether it is faster by this share of the other's time, or frees the host by as much and costs the device no more."""
        least = margin * other.seconds
        is_no_slower = self.device <= other.device + MARGIN * other.seconds
        return other.seconds - self.seconds > least or (is_no_slower and other.host - self.host > least)

    def __str__(self) -> str:
        host = f" ({self.host * 1e6:,.1f} of the host's)" if self.host < 0.9 * self.device else ""
        return f"{self.seconds * 1e6:,.1f} µs{host}"


class Timing:
    """A block that runs one call, by the clock of its thread and by a watch of its device, which may tell later."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self.host = 0.0
        self._has_ended = self._has_raised = False

    def __enter__(self) -> None:
        self._start = perf_counter()
        self._watch.start()

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._watch.stop()
        self.host = perf_counter() - self._start
        self._has_ended, self._has_raised = True, error is not None

    def device(self) -> float | None:
        """Seconds of the device: None as long as they are not known, 0 if they never will be."""
        if self._has_raised:
            return 0.0
        return self._watch.seconds() if self._has_ended else None
