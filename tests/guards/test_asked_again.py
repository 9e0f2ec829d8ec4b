"""Programs that ask the interpreter for a setting follow it when it changes."""

from __future__ import annotations

import csv
import faulthandler
import gc
import inspect
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import treeplay

Setting = tuple[Callable[[], Any], Callable[[Any], Any], tuple[Any, ...]]
_SPARSE = torch.sparse.check_sparse_tensor_invariants
SETTINGS: dict[str, Setting] = {
    "sys.getrecursionlimit": (sys.getrecursionlimit, sys.setrecursionlimit, (3011, 3007)),
    "sys.get_int_max_str_digits": (sys.get_int_max_str_digits, sys.set_int_max_str_digits, (5003, 5009)),
    "gc.get_threshold": (lambda: gc.get_threshold()[0], gc.set_threshold, (701, 709)),
    "gc.isenabled": (lambda: int(gc.isenabled()), lambda on: gc.enable() if on else gc.disable(), (0, 1)),
    "gc.get_debug": (gc.get_debug, gc.set_debug, (0, gc.DEBUG_UNCOLLECTABLE)),
    "sys.getswitchinterval": (sys.getswitchinterval, sys.setswitchinterval, (0.0625, 0.125)),
    "socket.getdefaulttimeout": (lambda: socket.getdefaulttimeout() or 1.0, socket.setdefaulttimeout, (2.0, 3.0)),
    "check_sparse_tensor_invariants": (
        lambda: int(_SPARSE.is_enabled()),
        lambda on: _SPARSE.enable() if on else _SPARSE.disable(),
        (1, 0),
    ),
    "csv.field_size_limit": (csv.field_size_limit, csv.field_size_limit, (90001, 90007)),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_the_interpreter_that_changes_is_followed(name: str) -> None:
    ask, change, values = SETTINGS[name]

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * ask() - 3

    before = gc.get_threshold()[0] if name == "gc.get_threshold" else ask()
    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    x = torch.arange(4.0)
    try:
        for value in (values[0], values[0], values[0], values[1], values[1], values[0]):
            change(value)
            assert torch.equal(jitted(x), program(x)), value
    finally:
        change(before)
    assert jitted.statistics().replays


def test_a_limit_that_only_the_library_asks_for_is_not_the_programs() -> None:
    """Inductor raises the limit of recursion when it compiles, and then the program would be recorded anew."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * len(inspect.unwrap(program).__name__) - 3

    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    x, before = torch.arange(4.0), sys.getrecursionlimit()
    try:
        for limit in (before, before, before + 1000, before + 1000):
            sys.setrecursionlimit(limit)
            assert torch.equal(jitted(x), program(x))
    finally:
        sys.setrecursionlimit(before)
    assert len(jitted.statistics().keys[0].recordings) == 1


def test_the_folder_that_the_process_is_in_is_followed(tmp_path: Path) -> None:
    here = Path.cwd()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * len(os.getcwd()) - 3

    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    x = torch.arange(4.0)
    try:
        for folder in (here, here, here, tmp_path, here):
            os.chdir(folder)
            assert torch.equal(jitted(x), program(x))
    finally:
        os.chdir(here)


def test_whether_faults_are_told_is_followed() -> None:
    was = faulthandler.is_enabled()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if faulthandler.is_enabled() else x - 3

    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    x = torch.arange(4.0)
    try:
        for is_on in (False, False, True, False):
            faulthandler.enable() if is_on else faulthandler.disable()
            assert torch.equal(jitted(x), program(x))
    finally:
        faulthandler.enable() if was else faulthandler.disable()


@pytest.mark.parametrize("ask", [threading.get_ident, threading.get_native_id])
def test_another_thread_is_not_taken_for_that_of_the_recording(ask: Callable[[], int]) -> None:
    main = ask()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 - 1 if ask() == main else x * 3 - 2

    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    x, found = torch.arange(4.0), []
    for _ in range(3):
        assert torch.equal(jitted(x), x * 2 - 1)
    thread = threading.Thread(target=lambda: found.extend(jitted(x) for _ in range(3)))
    thread.start()
    thread.join()
    assert [torch.equal(each, x * 3 - 2) for each in found] == [True] * 3
    assert torch.equal(jitted(x), x * 2 - 1)
