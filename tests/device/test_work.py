"""What is made of a failure to instantiate a graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from treeplay.device.cuda.capturing import work


class Unwilling:
    """A graph whose instantiation fails."""

    def __init__(self, why: str) -> None:
        self.why = why

    def instantiate(self) -> None:
        raise RuntimeError(self.why)


def instantiate(why: str) -> None:
    graph: Any = Unwilling(why)
    work._instantiate(graph)


def test_a_full_gpu_is_told_as_one_so_that_room_is_made() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="CUDA error: out of memory"):
        instantiate("CUDA error: out of memory")


def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="invalid argument") as caught:
        instantiate("CUDA error: invalid argument")
    assert not isinstance(caught.value, torch.OutOfMemoryError)
