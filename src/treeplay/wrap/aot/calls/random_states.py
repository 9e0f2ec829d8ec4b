"""Generators for random operators that the backward computes again: seeded alike in both directions.

    forward:   seeds = draw_seeds(2)        ─▶ ctx       args = [x, *generators.seeded(seeds)]
    backward:  seeds = ctx.seeds                         args = [saved, gradient, *generators.seeded(seeds)]

Each forward draws its own seeds, from torch's default generator: it is repeatable after `manual_seed`, a backward finds
the numbers of its own forward whatever ran in between and however often, and nothing has to be kept but the seeds.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

_LARGEST = 2**63 - 1  # that `randint` takes


def draw_seeds(count: int) -> list[int]:
    """Seeds for one forward; they are drawn on the CPU so that nothing waits for a device."""
    seeds: list[int] = torch.randint(_LARGEST, (count,), dtype=torch.int64, device="cpu").tolist()
    return seeds


class RecomputeGenerators(threading.local):
    """One generator for each recomputed operator, for each thread its own. They stay the same objects over all calls,
    as a recording needs it."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.generators = [torch.Generator(device) for device in devices]

    def seeded(self, seeds: Sequence[int]) -> list[torch.Generator]:
        """The generators, each at the start of its seed's numbers."""
        return [generator.manual_seed(seed) for generator, seed in zip(self.generators, seeds, strict=True)]


def generator_inputs(graph: torch.fx.GraphModule) -> list[Any]:
    """The sample generators among a graph's inputs; they are its last ones."""
    values = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
    return [value for value in values if isinstance(value, torch.Generator)]
