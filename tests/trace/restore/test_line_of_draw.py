"""The line of a program that uses a random generator of Python's or NumPy's."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from random import gauss
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import treeplay

Program = Callable[[torch.Tensor], torch.Tensor]
RNG = np.random.default_rng(1)


def of_numpy(x: torch.Tensor) -> torch.Tensor:
    y = torch.normal(x, 1.0) * 2
    scale = np.random.beta(0.4, 0.4)  # this line
    return y * scale


def of_python(x: torch.Tensor) -> torch.Tensor:
    random = x.sum()  # noqa: F841
    if choice([True, False]):  # this line
        return x * 2
    return x - 1


choice = random.choice


def imported_by_name(x: torch.Tensor) -> torch.Tensor:
    y = x.random_() - 1 if x.dim() > 5 else x
    return y * gauss(0.0, 1.0)  # this line


def of_a_global(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y - RNG.normal()  # this line


def of_a_closure() -> Program:
    rng = random.Random(1)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y - rng.random()  # this line

    return program


def of_an_attribute() -> Program:
    def program(x: torch.Tensor, holder: Any = SimpleNamespace(rng=np.random.default_rng(2))) -> torch.Tensor:  # noqa: B008
        y = torch.normal(x, 1.0)
        return y - holder.rng.normal()  # this line

    return program


def one(x: torch.Tensor) -> torch.Tensor:
    return helper(x * 2) - 1


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * np.random.rand()  # this line


@pytest.mark.parametrize(
    "program",
    [of_numpy, of_python, imported_by_name, of_a_global, of_a_closure(), of_an_attribute(), one],
    ids=lambda program: program.__qualname__,
)
def test_a_refusal_names_the_line_that_draws(program: Program) -> None:
    state = random.getstate(), np.random.get_state()
    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    try:
        with pytest.raises(treeplay.Refusal, match="draws from or seeds") as caught:
            for _ in range(3):
                jitted(torch.ones(2))
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])
    assert caught.value.where is not None and "# this line" in caught.value.where.source


_LIBRARY = """
import numpy

def spread(n):
    return _drawn(n) * 2

def _drawn(n):
    return numpy.random.rand(n).sum()

class Noise:
    def shake(self):
        return spread(3)
"""


def _library(folder: Path) -> ModuleType:
    """A module that counts as an installed one."""
    file = folder / "site-packages" / "shaking.py"
    file.parent.mkdir()
    file.write_text(_LIBRARY)
    library = ModuleType("shaking")
    exec(compile(_LIBRARY, str(file), "exec"), vars(library))
    return library


@pytest.mark.parametrize("is_method", [False, True])
def test_the_users_own_line_that_leads_to_a_draw_in_a_library(is_method: bool, tmp_path: Path) -> None:
    library = _library(tmp_path)
    noise = library.Noise()

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 - 1
        return y * (noise.shake() if is_method else library.spread(2))

    jitted = treeplay.jit(step, lower="aten", on_refusal="raise")
    jitted(torch.ones(2))
    with pytest.raises(treeplay.Refusal) as told:
        jitted(torch.ones(2))
    where = told.value.where
    assert where is not None and where.called_from is not None
    assert where.function == "_drawn"
    assert where.called_from.file == __file__
    assert where.called_from.line - step.__code__.co_firstlineno == 2
