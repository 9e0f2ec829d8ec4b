"""What a scripted module keeps in C++."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from treeplay.torch_seam.scripts import ScriptModule, attributes_of, set_attribute


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.sizes = [1, 2]
        self.register_buffer("mean", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale - len(self.sizes)


def test_the_attributes_of_a_scripted_module_are_told_and_set() -> None:
    scripted: Any = torch.jit.script(Kept())
    found = attributes_of(scripted)
    assert (found["scale"], found["sizes"], found["training"]) == (2.0, [1, 2], True)
    assert found["mean"] is scripted.mean
    set_attribute(scripted, "scale", 5.0)
    set_attribute(scripted, "sizes", [3])
    assert (attributes_of(scripted)["scale"], scripted.sizes) == (5.0, [3])


def test_a_traced_module_is_one_too() -> None:
    traced: Any = torch.jit.trace(nn.ReLU(), torch.ones(2))
    assert attributes_of(traced)["training"] is True


def test_a_scripted_module_without_its_constructor_has_none() -> None:
    assert attributes_of(ScriptModule.__new__(ScriptModule)) == {}
