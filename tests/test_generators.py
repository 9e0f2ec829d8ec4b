"""T23: a call draws what the program draws, and nothing else that is done for it moves a generator, on any device.

The oracle runs the same calls of the program as it is, from the same seeds: all generators stand where they stand there.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import treeplay
from support import training
from treeplay.backend.account import graph_reports
from treeplay.torch_compile import backend
from treeplay.tree import audit

pytestmark = pytest.mark.programs

CALLS = 6
Program = Callable[[torch.Tensor], Any]
Make = Callable[[str, torch.Generator], Program]


class Gone(Exception):
    """What a program raises."""


def half(device: str, own: torch.Generator) -> Program:
    weight = torch.randn(5, 7, device=device).bfloat16()
    return lambda x: (x.bfloat16() @ weight).float() * 2 - 1


def trained(device: str, own: torch.Generator) -> Program:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 5)).to(device)
    step = training(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    return lambda x: step(x, x)


def with_dropout(device: str, own: torch.Generator) -> Program:
    layer = nn.Linear(5, 3, device=device)
    return lambda x: F.dropout(layer(x), 0.5).square().mean()


def refused(device: str, own: torch.Generator) -> Program:
    return lambda x: x * 2 - 1 if F.dropout(x, 0.25).sum().item() > 1e9 else x - 3


def raised(device: str, own: torch.Generator) -> Program:
    calls = iter(range(100))

    def program(x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x, 0.5) - 1
        if next(calls) % 2:
            raise Gone
        return y

    return program


def with_its_own(device: str, own: torch.Generator) -> Program:
    return lambda x: x - torch.rand(3, 5, generator=own, device=device)


def in_python(device: str, own: torch.Generator) -> Program:
    return lambda x: x * random.random() - np.random.rand() + torch.rand_like(x)


def seeded(device: str, own: torch.Generator) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(11)
        return x - torch.rand_like(x)

    return program


def forked(device: str, own: torch.Generator) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng(device_type="cuda"):
            y = torch.rand_like(x)
        return x - y * 2

    return program


def checkpointed(device: str, own: torch.Generator) -> Program:
    layer = nn.Linear(5, 5, device=device)
    return lambda x: checkpoint(lambda x: F.dropout(layer(x), 0.5), x, use_reentrant=False).square().mean()


DRAWING: list[Make] = [with_dropout, refused, raised, with_its_own, in_python, seeded, forked, checkpointed]
PROGRAMS: list[Make] = [half, trained, *DRAWING]


def compiled(program: Program) -> Program:
    torch.compiler.reset()
    return torch.compile(program, backend=backend, options={"inner": "aten", "eager_random": True})


FRONTS: dict[str, Callable[[Program], Program]] = {
    "aten": lambda program: treeplay.jit(program, lower="aten"),
    "capture": lambda program: treeplay.jit(program, lower="capture"),
    "compile": compiled,
}


def states(device: str, own: torch.Generator) -> list[bytes]:
    """Where each generator of the process stands."""
    known = [torch.default_generator, own, *(torch.cuda.default_generators if device == "cuda" else ())]
    there = [bytes(generator.get_state().numpy()) for generator in known]
    return [*there, repr(random.getstate()).encode(), repr(np.random.get_state()).encode()]


def run(make: Make, front: Callable[[Program], Program], device: str) -> list[list[bytes]]:
    """Where they stand after each of some calls, each with a backward if there is one."""
    torch.manual_seed(3), random.seed(4), np.random.seed(5)
    own = torch.Generator(device).manual_seed(6)
    program, found = front(make(device, own)), []
    for call in range(CALLS):
        with suppress(Gone):
            result = program(torch.full((3, 5), 1.0 + call, device=device))
            if result.requires_grad:
                result.backward()
        found.append(states(device, own))
    return found


def assert_as_in_eager(make: Make, front: str, device: str) -> None:
    found, expected = run(make, FRONTS[front], device), run(make, lambda program: program, device)
    for call, (ours, eagers) in enumerate(zip(found, expected, strict=True)):
        assert ours == eagers, f"call {call}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("front", ["aten", "capture"])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_T23_generators_stand_where_eagers_stand_after_each_call(make: Make, front: str, device: str) -> None:
    assert_as_in_eager(make, front, device)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [half, with_dropout, raised, with_its_own], ids=lambda make: make.__name__)
def test_T23_behind_torch_compile_too(make: Make, device: str) -> None:
    assert_as_in_eager(make, "compile", device)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [trained, with_its_own], ids=lambda make: make.__name__)
def test_T23_proofs_and_audits_move_no_generator(make: Make, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    audits: list[object] = []
    run_audit = audit.Audit.run
    monkeypatch.setattr(treeplay.settings, "verify", True)
    monkeypatch.setattr(audit, "FIRST_AFTER", 1)
    monkeypatch.setattr(audit, "MOST_OF_THE_TIME", 1e9)
    monkeypatch.setattr(audit.Audit, "run", lambda *given: (audits.append(given), run_audit(*given))[1])
    assert_as_in_eager(make, "aten", device)
    assert audits


def inference(width: int) -> Program:
    weight = torch.full((width, width + 2), 0.5, device="cuda", dtype=torch.float16)
    return lambda x: (x @ weight).float() * 2 - 1


def differentiable(width: int) -> Program:
    weight = torch.full((width, width + 2), 0.5, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return lambda x: (x.bfloat16() @ weight).float().square().mean()


def step(width: int) -> Program:
    weight = torch.full((width, width + 2), 0.5, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)

    def program(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (x.bfloat16() @ weight).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return program


BY_INDUCTOR: dict[str, Callable[[Program], Program]] = {
    "jit": lambda program: treeplay.jit(program, on_refusal="raise"),
    "compile": lambda program: torch.compile(program, backend=backend),
}
_widths = itertools.count(1025 + 2 * (os.getpid() % 200), 2)
"""Of products whose padding no process has timed before: Inductor keeps what it found."""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("make", "front"),
    [(inference, "jit"), (differentiable, "jit"), (step, "jit"), (inference, "compile"), (differentiable, "compile")],
)
def test_T23_the_timing_of_padded_products_moves_no_generator(
    make: Callable[[int], Program], front: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[object] = []
    randn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *size, **options: timed.append(size) or randn(*size, **options))
    torch.compiler.reset()
    width, own = next(_widths), torch.Generator("cuda").manual_seed(6)
    program = BY_INDUCTOR[front](make(width))
    torch.cuda.manual_seed(3), torch.cuda.default_generators[0].set_offset(8)
    before = states("cuda", own)
    for call in range(CALLS):
        result = program(torch.full((width, width), 1.0 + call, device="cuda", dtype=torch.float16))
        if result.requires_grad:
            result.backward()
        assert states("cuda", own) == before, f"call {call}"
    assert timed, "nothing was timed: the test shows nothing"
    if front == "jit":
        assert program.statistics().keys[0].recordings[0].launch.stage == "recorded"
    else:
        assert {report.launch.stage for report in graph_reports()[-1:]} == {"recorded"}
