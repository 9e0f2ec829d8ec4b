"""Each row is tested on every device it is about: `dev` is "cpu", and "cuda" where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


def _cuda(*extra: pytest.MarkDecorator) -> object:
    return pytest.param("cuda", marks=[pytest.mark.gpu, *extra])


@pytest.fixture(params=["cpu", _cuda()])
def dev(request: pytest.FixtureRequest) -> str:
    """Where to record."""
    return str(request.param)


@pytest.fixture(params=[_cuda()])
def cuda(request: pytest.FixtureRequest) -> str:
    """For rows about CUDA only."""
    return str(request.param)


@pytest.fixture
def two_gpus() -> None:
    """Skips where there are fewer than two."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")


@pytest.fixture
def x(dev: str) -> Iterator[torch.Tensor]:
    """A thousand ones."""
    yield torch.ones(1000, device=dev)
