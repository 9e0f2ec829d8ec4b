"""A library that asks whether it is traced gets the same answer each time that a program runs for its recording."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same, jit
from treeplay.torch_seam.fakes import FakeTensor

NAME = "transformers.utils.import_utils"


def is_fake_tensor(value: object) -> bool:
    return isinstance(value, FakeTensor)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType(NAME)
    made.is_fake_tensor = is_fake_tensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, NAME, made)
    return made


def test_a_mask_is_not_read_in_a_program_that_the_caller_differentiates(library: ModuleType) -> None:
    layer = nn.Linear(3, 2)

    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        wanted = mask > 0
        if not library.is_fake_tensor(wanted) and wanted.all():
            return layer(x)  # type: ignore[no-any-return]
        return layer(x) * wanted - 0.0  # type: ignore[no-any-return]

    jitted = jit(program)
    for call in range(4):
        x, mask = torch.randn(2, 3), torch.tensor([[1.0], [call % 2]])
        gradients = []
        for run in (jitted, program):
            layer.weight.grad = None
            run(x, mask).square().sum().backward()
            gradients.append(layer.weight.grad)
        assert_same(*gradients)
    assert jitted.statistics().replays == 3
    assert library.is_fake_tensor is is_fake_tensor


def test_a_mask_that_is_given_is_not_read(library: ModuleType, device: str) -> None:
    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not library.is_fake_tensor(mask) and mask.all():
            return x - 3
        return (x - 3) * mask

    jitted = jit(program)
    for call in range(4):
        x, mask = torch.arange(3.0, device=device) - call, torch.tensor([1.0, call % 2, 1.0], device=device)
        assert_same(jitted(x, mask), (x - 3) * mask)
    assert jitted.statistics().replays >= 2
    assert library.is_fake_tensor is is_fake_tensor


def test_a_read_that_only_a_later_run_makes_is_refused_as_such() -> None:
    layer = nn.Linear(3, 2)

    def program(x: torch.Tensor) -> torch.Tensor:
        wanted = x > 0
        if not isinstance(wanted, FakeTensor) and wanted.all():
            return layer(x)  # type: ignore[no-any-return]
        return layer(x) - 1.0  # type: ignore[no-any-return]

    jitted = jit(program)
    jitted(torch.ones(2, 3))
    with pytest.raises(treeplay.Refusal, match="reads a tensor's value on the host") as caught:
        jitted(torch.ones(2, 3))
    assert (caught.value.op, caught.value.where.source) == (
        "item",
        "if not isinstance(wanted, FakeTensor) and wanted.all():",
    )
