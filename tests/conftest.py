"""Each test finds the process-wide tables empty (a warning given once is given to it), the same random state, one thread.

One thread, because sums of another number of threads may round differently, and tests compare bit for bit. Each test is in
one tier (`tiers.py`); those of the tiers `unit` and `programs` start no compiler. Nothing here imports torch, with which the
process that only hands out tests would start 3 s later.
"""

from __future__ import annotations

import gc
import math
import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tiers import (
    TIER,
    WITHOUT_COMPILER,
    CompilerGate,
    compiled_code_of_this_run,
    quick_compiles,
    quick_linker,
    sort_into_tiers,
)

if TYPE_CHECKING:
    from support.interpreters import FreshPython

GATE = CompilerGate()


def pytest_configure(config: pytest.Config) -> None:
    """Before any process of this run imports torch or a test."""
    for lend in (compiled_code_of_this_run, quick_compiles, quick_linker):
        lent = lend(os.environ)
        lent.__enter__()
        config.add_cleanup(partial(lent.__exit__, None, None, None))
    GATE.install()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as where a shell starts a run in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # until all is loaded


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sort_into_tiers(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.set_threshold(10_000, 10, 10)  # a trace makes so many objects that collections are a twentieth of a run
    gc.enable()


@pytest.fixture(autouse=True)
def fresh_process_state(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.module.__name__.endswith("test_layers"):  # which needs no torch
        yield
        return
    import torch

    import treeplay
    from support.quick import (
        leave_out_of_collections,
        leave_out_structured_trace,
        leave_out_timing_of_guards,
        seed,
    )
    from treeplay import observe

    leave_out_timing_of_guards()
    leave_out_structured_trace()
    leave_out_of_collections(request.node.stash[TIER])
    observe.reset()
    seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with treeplay.settings.changed(compile_budget=math.inf, tiers="exact"):  # what is recorded depends on no clock
        yield
    torch.set_num_threads(threads)
    observe.reset()


@pytest.fixture(autouse=True)
def no_compiler_but_in_its_tier(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.stash[TIER] not in WITHOUT_COMPILER:
        yield
        return
    with GATE.shut():
        yield


@pytest.fixture
def fresh_python() -> FreshPython:
    """Runs code in a Python of its own; tests that do are in the tier `programs`."""
    from support.interpreters import run_python

    return run_python


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """A Dynamo that has compiled nothing, before and after."""
    import torch

    from support.compiled import forget_reports

    torch._dynamo.reset()
    forget_reports()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device that there is."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return str(request.param)


@pytest.fixture
def on_each_device(device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, and tensors of the wrap stage's oracle lie there."""
    from wrap.aot import oracle

    monkeypatch.setattr(oracle, "DEVICE", device)
    return device
