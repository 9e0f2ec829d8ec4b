"""Work that runs as it is borrows the scratch of recordings, and what is alive after it has memory of its own."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import treeplay
from support import the_recording
from support.temporaries import MIB, temporaries
from treeplay.device.cuda.lane import Lane, lane_of
from treeplay.device.cuda.memory.lent import LentScratch
from treeplay.tree.tiers import compile_thread

pytestmark = pytest.mark.gpu

BLOCK = 32  # MiB of each temporary tensor


@pytest.fixture
def lane() -> Iterator[Lane]:
    """The lane of the GPU, with a recording that has scratch of eight tensors; at the end all that was lent is given back."""
    program, x = temporaries(8, BLOCK)
    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    for number in range(4):
        given = x + number
        assert torch.equal(jitted(given), program(given))
    assert the_recording(jitted).launch.stage == "recorded"
    found = lane_of(x.device)
    assert found.scratch.nbytes >= 8 * BLOCK * MIB
    yield found
    assert torch.equal(jitted(x - 1), program(x - 1))
    gc.collect()
    found._close_what_is_done()
    assert not [space for _, space in found._closing if isinstance(space, LentScratch)]


def used() -> int:
    """Bytes in use on the device."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def overwritten(lane: Lane) -> None:
    """Write to all the scratch."""
    lent = LentScratch(lane.scratch)
    try:
        lent.run(lambda: [torch.full((7 * BLOCK * MIB,), 77, dtype=torch.uint8, device="cuda")[:1].clone()])
    finally:
        lane.close(lent)
    torch.cuda.synchronize()


def test_it_takes_no_memory_beside_the_scratch(lane: Lane) -> None:
    program, x = temporaries(8, BLOCK)
    torch.cuda.empty_cache()
    scratch, during, more = lane.scratch.nbytes, 0, []

    def run() -> list[torch.Tensor]:
        nonlocal during
        out = program(x)
        during = used()
        return [out]

    for _ in range(3):  # other processes use the device too
        before = used()
        (found,) = lane.run_on_scratch(run)
        more.append(during - before)
    assert min(more) <= 4 * BLOCK * MIB and lane.scratch.nbytes == scratch
    overwritten(lane)
    assert torch.equal(found, program(x))


def test_what_needs_more_gets_more_and_gives_it_back(lane: Lane) -> None:
    program, x = temporaries(20, BLOCK)
    before, after = used(), []
    for _ in range(5):  # other processes use the device too, for a moment
        (found,) = lane.run_on_scratch(lambda: [program(x)])
        assert torch.equal(found, program(x))
        torch.cuda.empty_cache()
        after.append(used())
        time.sleep(0.2)
    assert min(after) <= before + 2 * MIB


def test_results_that_share_memory_still_do(lane: Lane) -> None:
    x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)

    def run() -> list[torch.Tensor]:
        y = x * 3 - 1
        return [y, y[5:].view(torch.int32), x, y.view(1024, 1024).t()]

    whole, part, same, turned = lane.run_on_scratch(run)
    overwritten(lane)
    assert torch.equal(whole, x * 3 - 1) and same is x and torch.equal(turned, whole.view(1024, 1024).t())
    whole[5] = 8
    assert part[0] == torch.tensor(8.0).view(torch.int32) and turned[5, 0] == 8


def test_what_somebody_keeps_has_memory_of_its_own(lane: Lane) -> None:
    x, kept = torch.arange(1 << 22, device="cuda", dtype=torch.float32), list[torch.Tensor]()

    def run() -> list[torch.Tensor]:
        made = [x * number - 1 for number in range(6)]
        kept.extend(made[::2])
        return [made[1] + 1]

    (found,) = lane.run_on_scratch(run)
    overwritten(lane)
    assert torch.equal(found, x)
    for number, one in zip(range(0, 6, 2), kept, strict=True):
        assert torch.equal(one, x * number - 1)
    kept.clear()


def test_an_exception_loses_nothing(lane: Lane) -> None:
    x = torch.arange(1 << 22, device="cuda", dtype=torch.float32)

    def run() -> list[torch.Tensor]:
        y = x * 2 - 1
        raise KeyError(y.shape[0])

    with pytest.raises(KeyError):
        lane.run_on_scratch(run)
    overwritten(lane)


def test_workspaces_of_libraries_do_not_stay_there(lane: Lane) -> None:
    torch._C._cuda_clearCublasWorkspaces()
    x = torch.randn(512, 512, device="cuda")
    (found,) = lane.run_on_scratch(lambda: [x @ x - 1])
    overwritten(lane)
    assert torch.equal(found, x @ x - 1)


def test_what_is_compiled_in_the_background_runs_there_first(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    (program, x), lent = temporaries(6, BLOCK), list[int]()
    run = LentScratch.run

    def noted(self: LentScratch, work: Any) -> Any:
        lent.append(self.end - self.start)
        return run(self, work)

    monkeypatch.setattr(LentScratch, "run", noted)
    monkeypatch.setattr(treeplay.settings, "tiers", "background")
    jitted: Any = treeplay.jit(program, on_refusal="raise")
    for number in range(40):
        given = x - number
        torch.testing.assert_close(jitted(given), program(given))
        assert number != 3 or compile_thread.wait(100)
    assert lent and min(lent) >= 8 * BLOCK * MIB
    recording = the_recording(jitted)
    assert recording.launch.stage == "recorded" and "tried" in str(recording.tier), jitted.explain()
