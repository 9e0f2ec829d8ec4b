"""The host device binds what it is given, and keeps small programs on one thread."""

from __future__ import annotations

import pytest
import torch

from treeplay.device.host import HostDevice
from treeplay.device.protocol import Work


def work(run, **facts):
    return Work("work", run, lambda tensors: run(tensors, ()), **facts)


def test_opaque_work_is_taped_and_leaves_what_eager_would():
    weight = torch.tensor([2.0, 3.0])

    def run(tensors, numbers):
        given, weight = tensors
        weight.mul_(given).sub_(1)
        return [weight * 10]

    recorded = HostDevice().record(work(run, is_opaque=True, fixed=frozenset({1})))
    kept = []
    for number in range(1, 4):
        given, twin = torch.full((2,), float(number)), weight.clone()
        kept.append((recorded.replay([given, weight], ()), run([given, twin], ())))
        assert torch.equal(weight, twin)
    for (found,), (expected,) in kept:
        assert torch.equal(found, expected)
    assert recorded.facts().stage == "recorded"


def test_opaque_work_is_taped_anew_when_its_state_has_moved():
    recorded = HostDevice().record(
        work(lambda tensors, numbers: [tensors[0] * 2 - 1], is_opaque=True, fixed=frozenset({0}))
    )
    for value in (1.0, 5.0):
        (out,) = recorded.replay([torch.full((2,), value)], ())
        assert out.tolist() == [value * 2 - 1] * 2


def test_recording_runs_nothing():
    calls = []
    recorded = HostDevice().record(work(lambda tensors, numbers: calls.append(1) or [], scratch_bytes=7))
    facts = recorded.facts()
    assert (calls, facts.scratch_bytes, facts.device, facts.stage) == ([], 7, "cpu", "bound")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_small_program_runs_on_one_thread_and_puts_the_number_back(threads):
    before = torch.get_num_threads()
    seen = []

    def run(tensors, numbers):
        seen.append(torch.get_num_threads())
        raise RuntimeError("fails half-way")

    torch.set_num_threads(threads)
    try:
        with pytest.raises(RuntimeError, match="half-way"):
            HostDevice().record(work(run, is_small=True)).replay([], ())
        assert (seen, torch.get_num_threads()) == ([1], threads)
    finally:
        torch.set_num_threads(before)
