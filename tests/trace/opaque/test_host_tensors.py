"""Tensors and generators of the host beside a recording: a change is noticed, and a program that makes one is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from treeplay.errors import Refusal, TooEarly
from treeplay.trace.opaque.host_tensors import HostState
from treeplay.values.refusal import Reason

META = torch.device("meta")  # any device that is not the CPU


def refuse(op: str, why: str, advice: str) -> Refusal:
    return Refusal(Reason(op, why, advice))


@pytest.fixture
def tensors() -> Iterator[list[torch.Tensor]]:
    yield [torch.tensor([1.0, torch.nan]), torch.zeros(5000)]


def test_equal_values_are_no_change(tensors: list[torch.Tensor]) -> None:
    host = HostState(tensors, META, [])
    tensors[0].copy_(tensors[0].clone())
    assert host.is_the_same
    tensors[0][0] = 2.0
    assert not host.is_the_same


def test_of_a_large_tensor_the_version_is_asked(tensors: list[torch.Tensor]) -> None:
    host = HostState(tensors, META, [])
    tensors[1].add_(0)
    assert not host.is_the_same


def test_a_write_is_refused_and_put_back(tensors: list[torch.Tensor]) -> None:
    host = HostState(tensors, META, [])
    with pytest.raises(Refusal, match="does not follow"), host.apart(refuse):
        tensors[0].fill_(7.0)
    assert tensors[0][0] == 1.0


def test_a_draw_is_refused_and_put_back() -> None:
    own = torch.Generator()
    host, states = HostState([], META, [own]), (torch.get_rng_state(), own.get_state())
    for generator in (None, own):
        with pytest.raises(Refusal, match="draws them on the CPU"), host.apart(refuse):
            torch.rand(1, generator=generator)
        assert torch.equal(torch.get_rng_state(), states[0]) and torch.equal(own.get_state(), states[1])


def test_what_another_thread_draws_once_the_run_was_looked_at_stays_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[torch.Tensor] = []
    monkeypatch.setattr(HostState, "_put_back", lambda _: drawn.append(torch.rand(2)))  # the last moment for it
    host, state = HostState([], META, []), torch.get_rng_state()
    with host.apart(refuse):
        pass
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    assert torch.equal(torch.rand(2), drawn[0]) and torch.equal(torch.get_rng_state(), after)


def test_a_draw_of_another_thread_stays_and_a_later_call_is_looked_at_again() -> None:
    host, state = HostState([], META, []), torch.get_rng_state()
    with pytest.raises(TooEarly), host.apart(refuse, lambda: False):
        torch.rand(1)
    assert not torch.equal(torch.get_rng_state(), state)


def test_an_exception_goes_through_and_leaves_no_mark(tensors: list[torch.Tensor]) -> None:
    host = HostState(tensors, META, [])
    with pytest.raises(ValueError, match="of the program"), host.apart(refuse):
        tensors[0].fill_(7.0)
        raise ValueError("of the program")
    assert tensors[0][0] == 1.0


def test_a_recording_on_the_cpu_may_draw() -> None:
    before = torch.get_rng_state()
    with HostState([], torch.device("cpu"), []).apart(refuse):
        torch.rand(1)
    assert not torch.equal(torch.get_rng_state(), before)
