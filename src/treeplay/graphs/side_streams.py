"""Streams that a program uses by itself while it is being captured.

CUDA captures only streams that wait for the capture stream, and ends a capture only if all of them were waited for. A program
that is right without a capture may do neither (it may know that its own stream is idle): work on a stream that was not
forked would run once, at once, and be missing from every replay. So each stream is forked before its first operation and
joined after the body.

    capture stream ──┬── body ──────────┬──▶
                     └─▶ own stream ────┘
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from treeplay.torch_seam.dynamo import LeavesCompiled


class SideStreams(LeavesCompiled):
    """While it is entered: forks every stream that an operation runs on. `names` are those seen so far."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._capture = torch.cuda.current_stream(device)
        self._forked: dict[int, torch.cuda.Stream] = {}

    @property
    def names(self) -> list[str]:
        """The streams that were forked."""
        return [f"stream {handle:#x}" for handle in self._forked]

    def join(self) -> None:
        """Let the capture stream wait for every forked stream."""
        for stream in self._forked.values():
            self._capture.wait_stream(stream)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        stream = torch.cuda.current_stream(self._device)
        if stream != self._capture and stream.cuda_stream not in self._forked:
            self._forked[stream.cuda_stream] = stream
            stream.wait_stream(self._capture)
        return func(*args, **(kwargs or {}))
