"""What is said of a call and its node holds on every device: these modules run on the CPU, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wrap.aot import oracle

ON_EACH_DEVICE = {
    *(
        "test_again",
        "test_bases",
        "test_inference",
        "test_later",
        "test_mutants",
        "test_random",
        "test_shapes",
    ),
    *("test_saved_and_arriving", "test_subclasses", "test_together", "test_training", "test_twin", "test_views"),
    *("test_surroundings", "test_writes"),
}
"""Modules all of whose tensors come from `oracle.numbers` and what is like it."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in ON_EACH_DEVICE:
        metafunc.fixturenames.append("device")
        devices = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
        metafunc.parametrize("device", devices, indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where `numbers` lie in this test."""
    monkeypatch.setattr(oracle, "DEVICE", request.param)
    yield request.param
