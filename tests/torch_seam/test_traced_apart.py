"""Traces that overlap in two threads leave torch as it was, and do not mix up what they note."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.fx import traceback
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.interpreter import Interpreter

from treeplay.torch_seam.traced_apart import traced_in_this_thread

SECONDS = 20


def traced(function: Callable[[torch.Tensor], torch.Tensor]) -> torch.fx.GraphModule:
    with traced_in_this_thread():
        return make_fx(function)(torch.ones(2))  # type: ignore[no-any-return]


def homes_of_methods() -> set[str]:
    """The files of torch that methods of modules come from now; Dynamo puts its own in their place when it is imported."""
    methods: list[Any] = [nn.Module.__call__, nn.Module.__getattr__]
    return {Path(method.__code__.co_filename).name for method in methods}


def test_two_traces_of_which_the_first_ends_first_leave_torch_as_it_was() -> None:
    first_began, second_began, first_ended = threading.Event(), threading.Event(), threading.Event()

    def first(x: torch.Tensor) -> torch.Tensor:
        first_began.set()
        assert second_began.wait(SECONDS)
        return x * 2

    def second(x: torch.Tensor) -> torch.Tensor:
        second_began.set()
        assert first_ended.wait(SECONDS)
        return x - 3

    with ThreadPoolExecutor() as threads:
        one = threads.submit(traced, first)
        assert first_began.wait(SECONDS)
        other = threads.submit(traced, second)
        assert one.result()(torch.ones(2)).tolist() == [2, 2]
        first_ended.set()
        assert other.result()(torch.ones(2)).tolist() == [-2, -2]
    assert "_symbolic_trace.py" not in homes_of_methods()
    assert not torch.fx._symbolic_trace.is_fx_symbolic_tracing()
    assert proxy_tensor._CURRENT_MAKE_FX_TRACER is None
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2


def test_a_trace_of_operators_replaces_no_method_of_modules() -> None:
    torch.compile(torch.relu, backend="eager")(torch.ones(1))  # from which on Dynamo is put around traces
    seen = set()

    def program(x: torch.Tensor) -> torch.Tensor:
        seen.update(homes_of_methods())
        return nn.ReLU()(x) * 2

    assert traced(program)(torch.tensor([-1.0, 1.0])).tolist() == [0, 2]
    assert seen and "_symbolic_trace.py" not in seen


def test_a_symbolic_trace_still_finds_the_modules_that_are_called() -> None:
    with traced_in_this_thread():
        graph = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU())).graph
    assert [node.op for node in graph.nodes] == ["placeholder", "call_module", "output"]


def test_notes_at_the_next_node_are_those_of_one_thread_at_a_time() -> None:
    """A graph is run node by node beside a trace that notes what it does: neither sees the other's notes."""
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    for node in graph.graph.nodes:
        node.meta["mine"] = "beside"
    is_noting, ran = threading.Event(), threading.Event()

    def beside() -> None:
        with traced_in_this_thread():
            assert is_noting.wait(SECONDS)
            Interpreter(graph).run(torch.ones(1))
            ran.set()

    thread = threading.Thread(target=beside)
    thread.start()
    with traced_in_this_thread():
        with traceback.preserve_node_meta():
            traceback.current_meta["mine"] = "traced"
            is_noting.set()
            assert not ran.wait(0.05)
            with traceback.preserve_node_meta():  # as often as it likes
                assert traceback.get_current_meta()["mine"] == "traced"
        assert ran.wait(SECONDS)
    thread.join()
    assert not traceback.has_preserved_node_meta()
