"""What compiles draws from generators of its own: the default ones stand where they stood."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import torch
from torch.utils._mode_utils import no_dispatch

from treeplay.sandbox.generators import has_company, unmoved
from treeplay.torch_seam.fakes import FakeTensorMode


def test_T23_inputs_that_a_compiler_draws_under_fake_tensors_move_no_default_generator() -> None:
    """As Inductor does for the products that it times: real tensors, inside of its fake tensor mode."""
    before = torch.default_generator.get_state()
    with unmoved(), FakeTensorMode(), no_dispatch():
        drawn = torch.randn(3)
        like = torch.randn_like(drawn)
        assert torch.equal(torch.default_generator.get_state(), before)
    assert not torch.equal(drawn, like)


def test_T23_what_runs_without_data_draws_nothing_for_its_own_generators_to_keep() -> None:
    with unmoved(), FakeTensorMode():
        assert type(torch.randn(3)) is not torch.Tensor


COLLECTING = """
import gc, threading
from treeplay.sandbox.generators import has_company

class Cycle:
    def __init__(self):
        self.itself, self.local = self, threading.local()
        self.local.value = 1

def deep(calls):
    return deep(calls - 1) if calls else has_company()

gc.set_threshold(3, 1, 1)
for turn in range(300):
    Cycle()
    deep(turn % 7)
"""


def test_threads_are_counted_whatever_is_garbage() -> None:
    subprocess.run([sys.executable, "-c", COLLECTING], timeout=120, check=True)


def test_counting_threads_keeps_no_frame() -> None:
    class Local:
        pass

    def count() -> weakref.ref[Local]:
        local = Local()
        has_company()
        return weakref.ref(local)

    gc.disable()
    try:
        assert count()() is None
    finally:
        gc.enable()
