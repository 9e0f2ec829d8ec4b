"""Why a recording did not fit: only what differs, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from support import call_of as call
from treeplay.trace.call import Call
from treeplay.trace.jit import trace
from treeplay.tree.mismatch import first_mismatch, mode_mismatches
from treeplay.wrap.ambience import Ambience


class World:
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scale = 2.0
        self.parts = [torch.ones(1)]
        self.run(torch.ones(1, 2), 3)

    def run(self, x: torch.Tensor, n: int) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=False)
        out = self.model(x) * self.scale * n + self.parts[0]
        out.sum().backward()
        self.optimizer.step()
        return out.detach()


X = torch.ones(1, 2)
CHANGES: dict[str, tuple[Callable[[World], Any], Call, str]] = {
    "nothing": (lambda w: None, call(X, 3), ""),
    "a shape": (lambda w: None, call(torch.ones(4, 2), 3), "args[0]: float32[4, 2] (shape (4, 2)"),
    "a kind": (lambda w: None, call(1.0, 3), "args[0]: float, recorded with float32[1, 2]"),
    "a number": (lambda w: None, call(X, 4), "args[1]: 4, recorded with 3"),
    "a structure": (lambda w: None, call(X, n=3), "arguments: another structure"),
    "a module": (lambda w: setattr(w.model, "0", nn.Linear(2, 2)), call(X, 3), "self.model.0: another object"),
    "a length": (lambda w: w.parts.append(torch.ones(1)), call(X, 3), "length of self.parts: 2, recorded with 1"),
    "a submodule": (lambda w: w.model.append(nn.Tanh()), call(X, 3), "self.model.2: this Tanh, recorded with nothing"),
    "a dtype": (
        lambda w: w.parts.__setitem__(0, torch.ones(1).double()),
        call(X, 3),
        "self.parts[0]: float64[1] (dtype",
    ),
    "a watched value": (lambda w: setattr(w, "scale", 3.0), call(X, 3), "self.scale: 3.0, recorded with 2.0"),
    "a gradient": (lambda w: w.optimizer.zero_grad(), call(X, 3), ".grad"),
    "a branch": (lambda w: w.optimizer.param_groups[0].update(weight_decay=0.1), call(X, 3), "weight_decay"),
    "an input": (lambda w: w.optimizer.param_groups[0].update(lr=0.5), call(X, 3), ""),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_first_difference_is_named(what: str) -> None:
    change, later, text = CHANGES[what]
    world = World()
    signature = trace(world.run, call(X, 3)).signature
    change(world)
    found = first_mismatch(signature, later)
    assert str(found or "").find(text) >= 0 and bool(found) == bool(text), found


def test_a_tensor_that_was_given_twice_must_be_given_twice() -> None:
    signature = trace(lambda a, b: a - b, call(X, X)).signature
    assert first_mismatch(signature, call(X.clone(), X.clone())) is not None
    again = X.clone()
    assert first_mismatch(signature, call(again, again)) is None


def test_the_mode_that_changed_is_named() -> None:
    before = Ambience.now()
    assert next(mode_mismatches(before, Ambience.now()), None) is None
    with torch.no_grad():
        assert str(next(mode_mismatches(before, Ambience.now()))) == "grad mode: False, recorded with True"
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast: " in str(next(mode_mismatches(before, Ambience.now())))
