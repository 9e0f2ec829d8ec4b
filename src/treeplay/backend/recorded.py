"""A compiled graph that nothing keeps from being recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from treeplay.backend.account import Account
from treeplay.facts.captured import Direction, Role

Boxed = Callable[[list[Any]], Sequence[Any]]


def recorded(
    run: Boxed,
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    roles: Sequence[Role],
    direction: Direction,
    report: Account,
) -> Boxed:
    """The compiled graph as it is: it is launched as compiled code is."""
    return run
