"""How many Python frames a warm call takes from its caller to the launch: each costs some 50 ns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay


def frames_to_launch(call: Callable[[], Any]) -> list[str]:
    """The functions between `call` and the first operator that it runs, by name."""
    found: list[list[str]] = []

    def watch(frame: Any, event: str, arg: Any) -> None:
        is_operator = event == "c_call" and (
            arg.__name__ == "addmm" or frame.f_code.co_qualname == "OpOverload.__call__"
        )
        if is_operator and not found:
            chain = []
            while frame.f_code is not call.__code__ and "_dynamo" not in frame.f_code.co_filename:
                chain.append(frame.f_code.co_qualname)
                frame = frame.f_back
            found.append(chain[::-1])

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found[0]


@pytest.mark.parametrize("is_module", [False, True])
def test_a_warm_call_takes_four_frames(is_module: bool) -> None:
    net, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    jitted = treeplay.jit(net if is_module else lambda x: net(x), lower="aten")

    def call() -> Any:
        with torch.no_grad():
            return jitted(x)

    for _ in range(3):
        call()
    assert len(frames_to_launch(call)) == 4  # the caller's call, the manager's, the call function, the launch


@pytest.mark.parametrize("has_gradients", [False, True])
def test_a_warm_call_of_a_compiled_graph_takes_two_frames_and_its_node_one(has_gradients: bool) -> None:
    """On the CPU, where the generated code calls what was compiled; here that is the graph as it is."""
    net, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    compiled = torch.compile(net, backend="treeplay", options={"inner": "aten"})

    def call() -> Any:
        with torch.set_grad_enabled(has_gradients):
            return compiled(x)

    for _ in range(2):
        call()
    chain = frames_to_launch(call)
    assert chain.index("boxed.<locals>.call") == (3 if has_gradients else 2)
