"""Everyday programs as their authors write them: each gives eager's results in each call, and replays where it can.

They are those that `python -m benchmarks.as_written` times.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from benchmarks.everyday import PROGRAMS
from torch.distributions import Distribution

import treeplay
from support import assert_same
from treeplay.settings import Settings

pytestmark = pytest.mark.programs

CALLS = 48
NOT_REPLAYED = {
    "decoding with a growing cache": "each call has a size of its own",
    "40 sequence lengths": "each length comes once in forty calls",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_everyday_program_as_it_is_written(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The default, which torch.compile turns off for a process.
    monkeypatch.setattr(Distribution, "_validate_args", True)
    wrapped: list[Any] = []

    def jitted(program: Any) -> Any:
        wrapped.append(treeplay.jit(program, lower="aten"))
        return wrapped[-1]

    def made(wrap: Any) -> Any:
        torch.manual_seed(7)
        return PROGRAMS[name](wrap, torch.device(device))

    ours, eager = made(jitted), made(lambda program: program)
    # Eager's optimizers and products round otherwise there.
    near = {"rtol": 1e-3, "atol": 1e-4} if device == "cuda" else {}
    with warnings.catch_warnings(), treeplay.settings.changed(compile_budget=Settings().compile_budget):
        warnings.simplefilter("ignore", UserWarning)  # what varies is told
        for number in range(CALLS):
            found, expected = ours(number), eager(number)
            if near:
                torch.testing.assert_close(found, expected, **near)
            else:
                assert_same(found, expected)
    (program,) = wrapped
    made_of = program.statistics()
    if name in NOT_REPLAYED:
        assert made_of.recordings <= 4 and "new, and over the compile budget" in made_of.not_replayed
    else:
        assert made_of.replays >= made_of.calls - 8, program.explain()
        assert {one.launch.stage for key in made_of.keys for one in key.recordings} <= {"recorded", "bound"}
