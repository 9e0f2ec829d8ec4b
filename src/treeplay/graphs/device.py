"""What an explicit recording asks of a device: one Protocol, with a class for CUDA and one for the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from treeplay.errors import ArgumentError
from treeplay.graphs.inputs import Inputs
from treeplay.torch_seam.allocator import Pool


@dataclass(frozen=True, slots=True)
class Wish:
    """How to capture."""

    pool: Pool | None = None
    stream: Any = None
    error_mode: str = "global"
    collect_garbage: bool = False


@dataclass(frozen=True, slots=True)
class CaptureHoldings:
    """What a finished capture holds."""

    nodes: Mapping[str, int]
    pool_bytes: int
    exec_bytes: int | None


class DeviceRecording(Protocol):
    """One recording on one device; empty until a capture, and again after `reset`."""

    device: torch.device

    def capturing(self, wish: Wish) -> AbstractContextManager[None]:
        """Capture a block, with everything around it prepared and put back."""

    def begin(self, wish: Wish) -> None:
        """Begin a capture on what is current."""

    def end(self) -> None:
        """End it where it began. `UsageError` elsewhere, and then it goes on."""

    def abandon(self) -> None:
        """End it in whatever state it is, and keep nothing."""

    def instantiate(self) -> None:
        """Make what was captured ready to launch."""

    def replay(self) -> None:
        """Run it again."""

    def pool(self) -> Pool:
        """The token of its pool."""

    def dump(self, path: str) -> None:
        """Write it as DOT text."""

    def raw(self) -> Any:
        """torch's own recording, or None where torch has none."""

    def held(self) -> CaptureHoldings:
        """Its facts."""

    def reset(self) -> None:
        """Drop it, with its claim on the pool."""


@contextmanager
def noting_inputs(inputs: Inputs | None) -> Iterator[None]:
    """Note the outside tensors that a block reads, if that is wanted."""
    if inputs is None:
        yield
        return
    with inputs.watching():
        yield


def most_frequent(kinds: Sequence[str]) -> dict[str, int]:
    """How many of each kind, the most frequent first."""
    return dict(Counter(kinds).most_common())


def refuse_stream(stream: Any) -> None:
    """`ArgumentError` for a stream where there are none."""
    if stream is not None:
        raise ArgumentError(f"stream: a capture on the CPU has none, found {stream}")
