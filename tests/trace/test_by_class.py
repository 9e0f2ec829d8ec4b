"""What a library noted for the class of tensors, it knows of traced tensors too."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from support import assert_same, jit


class Backend:
    factor = 3.0


@pytest.fixture
def einops(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As einops finds a backend: noted by class, and asked for one by one where nothing is noted."""
    made: Any = ModuleType("einops._backends")
    made._type2backend, made.asked = {}, 0
    monkeypatch.setitem(sys.modules, "einops._backends", made)
    return made


def get_backend(library: Any, tensor: torch.Tensor) -> Any:
    found = library._type2backend.get(type(tensor))
    if found is None:
        library.asked += 1
        found = library._type2backend[type(tensor)] = Backend()
    return found


def test_a_backend_that_is_noted_by_class_is_not_looked_for_again(einops: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x - 1
        return y * get_backend(einops, y).factor

    jitted = jit(program)
    for call in range(4):
        assert_same(jitted(torch.ones(2) * call), (torch.ones(2) * call - 1) * 3)
    assert einops.asked == 1
    assert jitted.statistics().recordings == 1 and jitted.statistics().replays == 3


def test_the_same_in_a_program_that_the_caller_differentiates(einops: Any) -> None:
    weight = torch.ones(2, requires_grad=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x - weight
        return y * get_backend(einops, y).factor

    jitted = jit(program)
    for _ in range(4):
        jitted(torch.zeros(2)).sum().backward()
    assert einops.asked == 1 and jitted.statistics().replays == 3
    assert weight.grad is not None and weight.grad.tolist() == [-12.0, -12.0]


def test_a_library_that_notes_elsewhere_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "einops._backends", ModuleType("einops._backends"))
    jitted = jit(lambda x: x * 2 - 1)
    jitted(torch.ones(2)), jitted(torch.ones(2))
    assert jitted.statistics().replays == 1
