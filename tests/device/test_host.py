"""The host device binds what it is given, and keeps small programs on one thread."""

from __future__ import annotations

import pytest
import torch

from treeplay.device.host import HostDevice


def test_recording_runs_nothing():
    calls = []
    recorded = HostDevice().record(lambda tensors, numbers: calls.append(1) or [], scratch_bytes=7)
    assert (calls, recorded.scratch_bytes, recorded.device) == ([], 7, "cpu")


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
            HostDevice().record(run, scratch_bytes=0, is_small=True).replay([], ())
        assert (seen, torch.get_num_threads()) == ([1], threads)
    finally:
        torch.set_num_threads(before)
