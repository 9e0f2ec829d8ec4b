"""Host and wall time of variants, interleaved.

wall: what a call costs in a row of many                         many calls, then drain; seconds / calls
host: how long a call takes to return while the GPU has room     after those, a burst of few calls; seconds / calls

Within a round all variants meet the same state of the machine, so ratios are taken round by round. A few calls that are not
timed come before: the first ones after another variant find the processor's caches full of that one's data, and addresses
that have moved. Who comes after whom is drawn anew in each round.
"""

from __future__ import annotations

import gc
import random
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter
from typing import Any

import torch

from benchmarks.gpu.programs import Batch
from benchmarks.gpu.variants import Call
from benchmarks.measure import quartiles

_BURST = 16
_WARM_UP_CALLS = 10
_LEAD_IN_CALLS = 5
_BLOCK_SECONDS = 0.1
_MOST_CALLS_PER_BLOCK = 400
_FEWEST_ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Feed:
    """What calls are given, how many of their results stay alive, and how the device is drained."""

    batches: list[Batch]
    kept: int
    drain: Callable[[], None]

    def seconds(self, call: Call, calls: int) -> tuple[float, float]:
        """Seconds of `calls` calls: until the last has returned, and until the device has done its work."""
        kept: deque[torch.Tensor] = deque(maxlen=self.kept)
        chosen = list(islice(cycle(self.batches), calls))
        self.drain()
        start = perf_counter()
        for batch in chosen:
            kept.append(call(*batch))
        returned = perf_counter()
        self.drain()
        return returned - start, perf_counter() - start


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds per call, one dict by variant for each round."""

    host: list[dict[str, float]]
    wall: list[dict[str, float]]

    def as_plain(self) -> dict[str, Any]:
        """Microseconds by variant."""
        return {f"{kind}_us": _microseconds(getattr(self, kind)) for kind in ("host", "wall")}


def time_rounds(calls: dict[str, Call], feed: Feed, *, seconds: float) -> Rounds:
    """Rounds over all of `calls` for about `seconds`."""
    for call in calls.values():
        feed.seconds(call, _WARM_UP_CALLS)
    sizes = {name: _calls_per_block(feed.seconds(call, _WARM_UP_CALLS)[1]) for name, call in calls.items()}
    rounds, names, end = Rounds([], []), list(calls), perf_counter() + seconds
    gc.collect()
    chance = random.Random(0)
    while len(rounds.wall) < _FEWEST_ROUNDS or perf_counter() < end:
        wall, host = {}, {}
        for name in chance.sample(names, len(names)):
            feed.seconds(calls[name], _LEAD_IN_CALLS)
            wall[name] = feed.seconds(calls[name], sizes[name])[1] / sizes[name]
            host[name] = feed.seconds(calls[name], _BURST)[0] / _BURST
        rounds.wall.append(wall)
        rounds.host.append(host)
    return rounds


def _calls_per_block(seconds_of_warm_up: float) -> int:
    per_call = seconds_of_warm_up / _WARM_UP_CALLS
    return max(4, min(_MOST_CALLS_PER_BLOCK, round(_BLOCK_SECONDS / per_call)))


def compare(rounds: Rounds) -> dict[str, Any]:
    """treeplay's wall time beside the best peer's and the floor's, and the backend's beside reduce-overhead's."""
    wall = rounds.wall
    peers = [name for name in wall[0] if name not in ("treeplay", "backend", "floor")]
    best = min(peers, key=lambda name: statistics.median(times[name] for times in wall))
    found: dict[str, Any] = {"best_peer": best}
    if {"backend", "reduce-overhead"} <= set(wall[0]):
        found["backend_speedup"] = quartiles([times["reduce-overhead"] / times["backend"] for times in wall])
    if "treeplay" in wall[0]:
        found["speedup"] = quartiles([times[best] / times["treeplay"] for times in wall])
        if "floor" in wall[0]:
            found["over_floor"] = quartiles([times["treeplay"] / times["floor"] for times in wall])
    return found


def _microseconds(rounds: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {name: quartiles([times[name] * 1e6 for times in rounds]) for name in rounds[0]}
