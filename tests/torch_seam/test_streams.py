"""What another stream may still read is noted where it is asked about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from treeplay.torch_seam import streams
from treeplay.torch_seam.patched import ABSENT, without_stand_in


class Stream:
    """Stands for a stream, which a CPU has none of."""


@pytest.fixture(autouse=True)
def nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(streams, "_record_stream", lambda tensor, stream: None)
    yield
    assert not streams.recorded


def memory_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def test_a_watched_storage_is_noted_through_any_view_until_it_goes() -> None:
    tensor, other = torch.ones(4), torch.ones(4)
    memory = memory_of(tensor)
    streams.watch(memory)
    other.record_stream(Stream())  # type: ignore[arg-type]
    assert memory not in streams.recorded
    tensor[1:].record_stream(Stream())  # type: ignore[arg-type]
    assert streams.recorded == {memory}
    streams.unwatch(memory)
    tensor.record_stream(Stream())  # type: ignore[arg-type]
    assert memory not in streams.recorded


def test_what_notes_it_counts_as_the_method_that_torch_has() -> None:
    streams.watch(0)
    streams.unwatch(0)
    assert without_stand_in(vars(torch.Tensor)["record_stream"]) is ABSENT


def test_what_torch_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    streams.watch(0)
    streams.unwatch(0)
    with pytest.raises((RuntimeError, TypeError, NotImplementedError)):
        torch.ones(2).record_stream("no stream")  # type: ignore[arg-type]
