"""Checks of values inside of a program on a GPU: those of the device are recorded, those of the host are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import treeplay
from support import jit

pytestmark = pytest.mark.gpu


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    made = torch.library.Library("treeplay_test_gpu", "FRAGMENT")
    yield made
    made._destroy()


def test_a_check_on_the_host_is_refused_on_a_gpu() -> None:
    jitted = jit(lambda x: torch.linalg.cholesky(x) * 2)
    jitted(torch.eye(3, device="cuda"))
    with pytest.raises(treeplay.Refusal, match="cholesky asks on the host whether it succeeded") as caught:
        jitted(torch.eye(3, device="cuda"))
    assert "cholesky_ex" in caught.value.advice


def test_a_check_on_the_device_is_part_of_the_recording() -> None:
    jitted = jit(lambda x: (torch._assert_async(x.sum() > 0), x * 2)[1], lower="auto")  # type: ignore[func-returns-value]
    for _ in range(5):
        x = torch.rand(3, device="cuda")
        assert torch.equal(jitted(x), x * 2)
    recording = jitted.statistics().keys[0].recordings[0]
    assert recording.launch.stage == "recorded" and recording.lowering == "aten"


def test_an_operator_that_acts_on_the_host_is_refused(library: torch.library.Library) -> None:
    seen: list[Any] = []
    library.define("note(Tensor x) -> ()")
    library.impl("note", lambda x: seen.append(tuple(x.shape)), "CUDA")
    library.impl("note", lambda x: None, "Meta")

    def program(x: torch.Tensor) -> torch.Tensor:
        torch.ops.treeplay_test_gpu.note(x)
        return x * 2

    jitted: Callable[..., Any] = jit(program, on_refusal="eager")
    with pytest.warns(UserWarning, match="a replay repeats only kernels"):
        for _ in range(4):
            jitted(torch.ones(3, device="cuda"))
    assert seen == [(3,)] * 4
