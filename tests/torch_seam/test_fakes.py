"""Fakes in threads that end, on a machine without a GPU. A build of torch for the CPU has nothing to go wrong here."""

from __future__ import annotations

import threading

import pytest
import torch

from support.interpreters import FreshPython
from treeplay.torch_seam.fakes import hold_device_guard

IN_A_THREAD_THAT_ENDS = """
import threading, torch, treeplay

def run(number):
    jitted = treeplay.jit(lambda x: x * number - 1, lower="aten")
    for _ in range(4):
        assert torch.equal(jitted(torch.arange(3.0)), torch.arange(3.0) * number - 1)
    assert jitted.statistics().recordings == 1

def in_a_thread(number):
    thread = threading.Thread(target=run, args=(number,))
    thread.start()
    thread.join()

for number in range(2, 6):
    run_first(number)
    memory = [torch.empty(size) for size in range(64)]
run(7)
print("well", *[thread.name for thread in threading.enumerate()], sep=", ")
"""
BY_HAND = """
import threading, torch
from treeplay.torch_compile import compile_graph

def run(number):
    graph = torch.fx.symbolic_trace(lambda x: (x * number - 1,))
    compiled = compile_graph(graph, [torch.ones(3)], inner="aten")
    assert torch.equal(compiled(torch.arange(3.0))[0], torch.arange(3.0) * number - 1)

for number in range(2, 6):
    thread = threading.Thread(target=run, args=(number,))
    thread.start()
    thread.join()
run(7)
print("well")
"""


@pytest.mark.parametrize("code", [IN_A_THREAD_THAT_ENDS, BY_HAND], ids=["jit", "a graph"])
def test_the_first_thread_that_traces_may_end(code: str, fresh_python: FreshPython) -> None:
    printed, _ = fresh_python(code.replace("run_first", "in_a_thread"), CUDA_VISIBLE_DEVICES="")
    assert printed.startswith("well")


def test_only_a_thread_that_may_end_leaves_it_to_one_that_does_not(fresh_python: FreshPython) -> None:
    code = IN_A_THREAD_THAT_ENDS.replace("run_first", "run")
    printed, _ = fresh_python(code, CUDA_VISIBLE_DEVICES="")
    assert printed == "well, MainThread"


def test_an_error_of_the_thread_that_makes_it_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what will not be made."""

    def fail() -> None:
        raise MemoryError("no guard")

    def hold() -> None:
        with pytest.raises(MemoryError, match="no guard"):
            hold_device_guard.__wrapped__()
        is_over.set()

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch._C, "_ensureCUDADeviceGuardSet", fail, raising=False)
    is_over = threading.Event()
    threading.Thread(target=hold, daemon=True).start()
    assert is_over.wait(20)
