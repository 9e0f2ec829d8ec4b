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
        if event == "c_call" and not found and arg.__name__ in ("addmm", "mm", "add"):
            chain = []
            while frame.f_code is not call.__code__:
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
