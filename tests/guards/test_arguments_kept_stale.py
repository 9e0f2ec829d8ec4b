"""Arguments that the caller also keeps where the program may reach them: in a buffer of past batches, for example."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support import assert_same, jit


@dataclass
class Batch:
    x: Tensor
    scale: float = 1.0


class Agent:
    def __init__(self) -> None:
        self.net = nn.Linear(3, 2).requires_grad_(False)
        self.kept: list[Any] = []
        self.table: dict[int, Any] = {}
        self.reads: Callable[[Agent, Any], float] = lambda agent, batch: 0.0

    def act(self, batch: Any) -> Tensor:
        return self.net(tensor_of(batch)) - self.reads(self, batch)


def tensor_of(batch: Any) -> Tensor:
    return (
        batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list) else getattr(batch, "x", batch)
    )


BATCHES: dict[str, Callable[[Tensor], Any]] = {
    "a tensor": lambda x: x,
    "a dict": lambda x: {"x": x, "scale": 2.0},
    "a list": lambda x: [x],
    "a dataclass": Batch,
}
KEEPING: dict[str, Callable[[Agent, Any], Any]] = {
    "in a list": lambda agent, batch: agent.kept.append(batch),
    "within a tuple": lambda agent, batch: agent.kept.append((len(agent.kept), batch)),
    "in a dict": lambda agent, batch: agent.table.__setitem__(len(agent.table), batch),
}
READING: dict[str, Callable[[Agent, Any], float]] = {
    "how many": lambda agent, batch: 1.0 * len(agent.kept),
    "whether it is there": lambda agent, batch: 3.0 if any(one is batch for one in agent.kept) else 5.0,
    "whether it is the last": lambda agent, batch: 3.0 if agent.kept and agent.kept[-1] is batch else 5.0,
    "what the first one is": lambda agent, batch: 3.0 if agent.kept and agent.kept[0] is batch else 5.0,
}


def play(agent: Agent, make: Callable[[Tensor], Any], keep: Callable[[Agent, Any], Any], calls: int = 12) -> Any:
    twin = copy.deepcopy(agent)
    program = jit(agent.act, on_refusal="eager")
    for call in range(calls):
        x = torch.arange(3.0) + call
        ours, theirs = make(x), make(x.clone())
        if call % 3 != 2:
            keep(agent, ours), keep(twin, theirs)
        if call == 7:
            agent.kept.reverse(), twin.kept.reverse()
        assert_same(program(ours), twin.act(theirs), f"call {call}")
    return program.statistics()


@pytest.mark.parametrize("keep", KEEPING.values(), ids=KEEPING)
@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_one_recording_serves_batches_that_are_kept_where_the_program_does_not_look(make: Any, keep: Any) -> None:
    statistics = play(Agent(), make, keep)
    assert statistics.recordings == 1 and statistics.replays == 11


@pytest.mark.filterwarnings("ignore:treeplay runs")
@pytest.mark.parametrize("reads", READING.values(), ids=READING)
@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_a_program_that_looks_there_sees_them(make: Any, reads: Any) -> None:
    agent = Agent()
    agent.reads = reads
    play(agent, make, KEEPING["in a list"])


@dataclass
class Store:
    slot: Any = None
    kept: list[Any] = field(default_factory=list)


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_what_the_program_stores_is_stored_wherever_else_it_is(make: Any) -> None:
    mine, twin = Store(), Store()

    def storing(store: Store) -> Callable[[Any], Tensor]:
        def program(batch: Any) -> Tensor:
            store.slot = batch
            return tensor_of(batch) * 2 - 1

        return program

    program, eager = jit(storing(mine), on_refusal="eager"), storing(twin)
    for call in range(8):
        ours, theirs = (make(torch.arange(3.0) + call) for _ in range(2))
        for store, batch in ((mine, ours), (twin, theirs)):
            store.kept.append(batch)
            if call % 2:
                store.slot = batch
        assert_same(program(ours), eager(theirs), f"call {call}")
        assert mine.slot is ours and twin.slot is theirs
