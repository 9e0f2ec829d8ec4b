"""What a graphed callable stands for: the original, and for each key of its calls what is known of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from treeplay.graphs.body import CallableModes
from treeplay.graphs.contract import Contract
from treeplay.graphs.record import EagerBody
from treeplay.graphs.recorded import RecordedBody
from treeplay.graphs.roster import Roster

_training = attrgetter("training")


@dataclass(frozen=True, slots=True, eq=False)
class Original:
    """What was wrapped: the function or the module's forward, and the state that it reaches. A module is referred to weakly."""

    label: str
    function: Callable[..., Any]
    module_of: Callable[[], torch.nn.Module | None] | None
    roster: Roster
    is_training: list[bool]  # of the modules themselves, as they were wrapped
    modes: CallableModes

    @property
    def module(self) -> torch.nn.Module | None:
        """The module, if it was one and is still there."""
        return self.module_of() if self.module_of is not None else None

    def is_in_other_mode(self) -> bool:
        """Whether a module's `training` flag is not what it was."""
        try:
            return [*map(_training, self.roster.modules)] != self.is_training
        except ReferenceError:  # somebody has kept the module's forward, and not the module
            return False


@dataclass(frozen=True, slots=True, eq=False)
class KeyState:
    """What is known of one key: the contract of its calls, and their recording or why there is none."""

    contract: Contract
    roster: Roster
    recorded: RecordedBody | EagerBody | None  # None: forgotten, to be recorded anew by its next call

    @property
    def needs_gradient(self) -> bool:
        """Whether eager would record gradients for a call."""
        return self.roster.needs_gradient or any(item.requires_grad for item in self.contract.expected)
