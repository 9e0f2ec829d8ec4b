"""What is known of a graph that came through `torch.compile`, and what became of it, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import torch

from treeplay.values.launch import LaunchFacts
from treeplay.values.location import Location
from treeplay.values.refusal import Reason
from treeplay.values.spec import TensorSpec

Direction = Literal["inference", "forward", "backward"]


class Role(Enum):
    """How an input of a graph behaves from call to call."""

    STATIC = "static"
    """It stays where it is: parameters, buffers, tensors the user marked."""
    MANAGED = "managed"
    """It is ours: saved by the forward for the backward."""
    ORDINARY = "ordinary"
    """Anything else."""
    PLAIN = "plain"
    """No tensor: a number, None, a generator."""


@dataclass(frozen=True, slots=True)
class InputFacts:
    """One input of a graph. `spec` is None for what is no tensor; `kind` is its type's name.

    `written`: the line that writes it, where the graph does; `is_written` says whether it does.
    """

    name: str
    role: Role
    spec: TensorSpec | None = None
    offset: int = 0
    kind: str = "Tensor"
    is_written: bool = False
    is_rebound: bool = False
    written: Location | None = None

    def __str__(self) -> str:
        what = str(self.spec) if self.spec is not None else self.kind
        return f"{self.name} {what} {self.role.value}" + (" written" if self.is_written else "")


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The first operator of a graph that works on a device."""

    device: torch.device
    op: str
    where: Location | None = None


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """All that the decision to record a graph looks at.

    `operators` counts calls; `obstacles` are operators that no recording can hold; `marked` is a reason for each part that
    the user asked not to record. `inner`: the first of a forward's results that only its backward sees, and the end of them.
    """

    direction: Direction
    inputs: tuple[InputFacts, ...] = ()
    devices: tuple[DeviceUse, ...] = ()
    operators: int = 1
    obstacles: tuple[Reason, ...] = ()
    marked: tuple[Reason, ...] = ()
    is_on: bool = True
    is_dynamic: bool = False
    allows_dynamic: bool = True
    has_caching_allocator: bool = True
    is_forward_skipped: bool = False
    inner: tuple[int, int] = (0, 0)

    @property
    def uses_accelerator(self) -> bool:
        """Whether any of it works on another device than the CPU."""
        return any(use.device.type not in ("cpu", "meta") for use in self.devices)


@dataclass(frozen=True, slots=True)
class Skip:
    """One reason not to record a graph; `name` is what it is counted under."""

    name: str
    reason: Reason

    def __str__(self) -> str:
        return str(self.reason)


@dataclass(frozen=True, slots=True)
class GraphReport:
    """What became of one graph.

    `outcome`: "recorded"; "compiled", where nothing is against a recording but none was made (yet); "skipped", with the
    reasons in `skips`; "uncompiled", where it runs as it is. `seconds` to compile it; `seconds_a_call` on its device, where
    it was explained. `launch`: how a device launches it by now, where there is a recording, and how often it did;
    `not_replayed`: calls that ran it as it is compiled, by what they were.
    """

    graph_id: int
    direction: Direction
    outcome: str
    skips: tuple[Skip, ...] = ()
    inputs: tuple[InputFacts, ...] = ()
    operators: int = 0
    inner: str = ""
    seconds: float = 0.0
    seconds_a_call: float | None = None
    launch: LaunchFacts | None = None
    not_replayed: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join([self.head, *(f"  {line}" for skip in self.skips for line in str(skip).splitlines())])

    @property
    def head(self) -> str:
        """One line: which graph, and what became of it."""
        reasons = "" if not self.skips else f" ({', '.join(skip.name for skip in self.skips)})"
        calls = [] if self.launch is None else [f"{self.launch.launches} replays"]
        calls += [f"{count} {what}" for what, count in self.not_replayed.items()]
        took = "" if self.seconds_a_call is None else f", {self.seconds_a_call * 1e3:.3g} ms a call"
        return (
            f"graph {self.graph_id} {self.direction}: {self.outcome}{reasons}, {self.operators} operators, "
            f"{', '.join([self.inner, *calls])}{took}"
        )
