"""What a program asks of the world outside of Python's objects: settings are asked again, and clocks are found."""

from __future__ import annotations

import decimal
import logging
import os
import resource
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np
import pytest
import torch

import treeplay
from treeplay.guards.outside import never_the_same, settings_asked


def caller() -> None:
    pass


def asked(*names: str, by: CodeType = caller.__code__) -> dict[str, list[CodeType]]:
    return {name: [by] for name in names}


@pytest.mark.parametrize(
    "name",
    [
        "time.time",
        "time.perf_counter_ns",
        "time.monotonic",
        "time.clock_gettime",
        "time.clock_gettime_ns",
        "time.localtime",
        "time.strftime",
        "time.asctime",
        "now",
        "today",
        "posix.times",
        "posix.getloadavg",
        "resource.getrusage",
        "posix.urandom",
        "_uuid.generate_time_safe",
    ],
)
def test_a_clock_or_entropy_is_found_with_the_function_that_asked(name: str) -> None:
    found = never_the_same(asked("builtins.len", name))
    assert found is not None and found[0] == name
    assert found[1].file == __file__ and found[1].function == "caller"


@pytest.mark.parametrize("name", ["builtins.len", "time.sleep", "math.sqrt", "time.strptime"])
def test_what_repeats_is_no_clock(name: str) -> None:
    assert never_the_same(asked(name)) is None


def test_the_time_of_a_message_does_not_matter() -> None:
    by_logging = logging.LogRecord.__init__.__code__
    assert never_the_same(asked("time.time", by=by_logging)) is None
    assert never_the_same({"time.time": [by_logging, caller.__code__]}) is not None


@pytest.mark.parametrize(
    "read",
    [
        lambda: time.clock_gettime(time.CLOCK_MONOTONIC),
        lambda: os.times()[0],
        lambda: float(time.strftime("%S")),
        lambda: len(time.asctime()),
        lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    ],
)
def test_a_program_that_asks_a_clock_is_refused(read: Callable[[], float]) -> None:
    with pytest.raises(treeplay.Refusal, match="gives another answer each time"):
        jitted = treeplay.jit(lambda x: x * read() - 3, lower="aten", on_refusal="raise")
        for _ in range(3):
            jitted(torch.ones(2))


def test_a_thread_that_only_logging_asks_for_is_not_asked_for_again() -> None:
    (guard,) = settings_asked(asked("_thread.get_ident"))
    assert guard.label == "_thread.get_ident()" and guard.recorded == threading.get_ident()
    assert not [*settings_asked(asked("_thread.get_ident", by=logging.LogRecord.__init__.__code__))]


def _torch_threads(is_on: bool) -> None:
    torch.set_num_threads(2 if is_on else 1)


def _decimals(is_on: bool) -> None:
    decimal.getcontext().prec = 11 if is_on else 28


def _numpy_errors(is_on: bool) -> None:
    np.seterr(divide="ignore" if is_on else "warn")


SETTINGS: dict[str, tuple[str, Callable[[bool], None]]] = {
    "torch.get_num_threads()": ("torch.get_num_threads", _torch_threads),
    "decimal.getcontext()": ("decimal.getcontext", _decimals),
    "numpy.geterr()": ("numpy._core._multiarray_umath._get_extobj_dict", _numpy_errors),
}


@pytest.mark.parametrize("label", SETTINGS)
def test_a_setting_that_is_asked_for_is_asked_again(label: str) -> None:
    name, change = SETTINGS[label]
    try:
        (guard,) = settings_asked(asked(name))
        assert (guard.label, guard.ask()) == (label, guard.recorded)
        change(True)
        assert guard.ask() != guard.recorded
        change(False)
        assert guard.ask() == guard.recorded
    finally:
        change(False)


def test_the_dtype_of_autocast_is_asked_for_each_kind_of_device() -> None:
    guards = list(settings_asked(asked("torch.get_autocast_dtype")))
    assert [guard.label for guard in guards] == [f"torch.get_autocast_dtype({kind!r})" for kind in ("cpu", "cuda")]


@pytest.mark.parametrize(
    "name",
    [
        "torch.is_grad_enabled",  # the warm call asks for it anyway
        "torch.get_device",  # takes an argument
        "torch.is_there_no_such_function",
        "torch.add",
        "builtins.get_text",
        "time.get_clock_info",
    ],
)
def test_what_is_no_setting_of_the_process_is_not_asked_again(name: str) -> None:
    found: list[Any] = list(settings_asked(asked(name)))
    assert not found


def test_the_users_line_that_names_a_clock_is_told_among_all_that_ran() -> None:
    def asks() -> float:
        nothing = 0.0
        return nothing + time.perf_counter()  # HERE

    found = never_the_same({"time.perf_counter": [caller.__code__, asks.__code__]})
    assert found is not None and found[1] is not None and "HERE" in found[1].source
