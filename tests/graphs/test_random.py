"""Row G22: recorded random operators draw what eager code would draw."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from support.recordings import record
from treeplay import ArgumentError, ArgumentTypeError, CaptureFailed
from treeplay.graphs import Graph, graph

DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand": lambda x: torch.rand(5, device=x.device),
    "randn": lambda x: torch.randn(5, device=x.device),
    "randint": lambda x: torch.randint(0, 100, (5,), device=x.device),
    "rand_like": torch.rand_like,
    "dropout": lambda x: F.dropout(x, 0.4),
    "bernoulli": lambda x: torch.bernoulli(x * 0.3),
    "normal_": lambda x: torch.empty_like(x).normal_(1, 2),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "randperm": lambda x: torch.randperm(7, device=x.device),
    "multinomial": lambda x: torch.multinomial(x, 3, replacement=True),
    "two": lambda x: torch.rand(5, device=x.device) - torch.randn(5, device=x.device),
}


def states(dev: str) -> torch.Tensor:
    return torch.cuda.get_rng_state() if dev == "cuda" else torch.get_rng_state()


def test_G22_the_sequence_is_eagers() -> None:
    recording, n = record("cpu", lambda: torch.rand(2))
    torch.manual_seed(0)
    drawn = []
    for _ in range(2):
        recording.replay()
        drawn.append([round(value, 4) for value in n.tolist()])
    assert drawn == [[0.4963, 0.7682], [0.0885, 0.1320]]


@pytest.mark.parametrize("draw", DRAWS)
def test_G22_replays_and_eager_draws_are_one_sequence(dev: str, draw: str) -> None:
    x = torch.ones(5, device=dev)
    function = DRAWS[draw]
    if dev == "cuda" and draw == "randperm":
        pytest.skip("torch draws permutations on the host")
    recording, y = record(dev, lambda: function(x))
    torch.manual_seed(7)
    expected = [function(x).clone() for _ in range(6)]
    after = states(dev)
    torch.manual_seed(7)
    found = []
    for step in range(6):
        if step in (2, 3):
            found.append(function(x).clone())
        else:
            recording.replay()
            found.append(y.clone())
    assert all(map(torch.equal, found, expected))
    assert torch.equal(states(dev), after)


def test_G22_reseeding_before_a_replay_is_honoured(dev: str) -> None:
    recording, y = record(dev, lambda: torch.rand(5, device=dev))
    found = []
    for _ in range(2):
        torch.manual_seed(11)
        recording.replay()
        found.append(y.clone())
    assert torch.equal(*found)


def test_G22_a_registered_generator_advances_like_its_eager_twin(dev: str) -> None:
    mine, twin = (torch.Generator(dev).manual_seed(3) for _ in range(2))
    recording = Graph(device=dev)
    recording.register_generator_state(mine)
    with graph(recording):
        y = torch.rand(5, device=dev, generator=mine) + torch.rand(5, device=dev)
    assert torch.equal(mine.get_state(), twin.get_state())
    for step in range(4):
        torch.manual_seed(step)
        recording.replay()
        torch.manual_seed(step)
        expected = torch.rand(5, device=dev, generator=twin) + torch.rand(5, device=dev)
        assert torch.equal(y, expected)
        assert torch.equal(mine.get_state(), twin.get_state())


def test_G22_a_generator_that_is_not_registered_is_refused_by_name(dev: str) -> None:
    mine = torch.Generator(dev)
    with pytest.raises(CaptureFailed, match=r"the generator `mine`.*not registered") as failure:
        record(dev, lambda: torch.rand(5, device=dev, generator=mine))
    assert failure.value.advice.startswith("call `register_generator_state(mine)`")


def test_a_draw_of_another_thread_in_between_is_named_as_what_it_may_be() -> None:
    def draw_elsewhere() -> None:
        torch.rand(2)
        drawn.set()
        left.wait(30)

    told = r"unless it was another thread that drew(.|\n)*generators of their own"
    drawn, left = threading.Event(), threading.Event()
    other = threading.Thread(target=draw_elsewhere)
    try:
        with pytest.raises(CaptureFailed, match=told), graph(Graph(device="cpu")):
            other.start()
            assert drawn.wait(30)
            torch.rand(3)
    finally:
        left.set()
        other.join()


def test_G22_only_generators_of_the_device_can_be_registered(dev: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"generator: expected a torch.Generator, found int"):
        Graph(device=dev).register_generator_state(3)
    if dev == "cuda":
        with pytest.raises(ArgumentError, match="generator: it is of cpu"):
            Graph(device=dev).register_generator_state(torch.Generator())
