"""Each test finds and leaves the process-wide tables empty."""

from collections.abc import Iterator

import pytest
import torch

from treeplay import observe


@pytest.fixture(autouse=True)
def empty_tables() -> Iterator[None]:
    observe.reset()
    yield
    observe.reset()


@pytest.fixture
def cuda_count() -> int:
    """How many CUDA devices there are; skips where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.cuda.device_count()
