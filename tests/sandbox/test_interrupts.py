"""Ctrl-C in a stage: at once where it does no harm, a moment later where it would, and never lost."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from treeplay.sandbox.boundary import NoModesLeft, Unmarked
from treeplay.sandbox.interrupts import Harm, harm_in, uninterrupted


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def wait() -> None:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        pass
    raise AssertionError("nothing came")


@pytest.fixture(autouse=True)
def handler_stays() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before is signal.default_int_handler


class Pressed:
    """A context during whose entry or end Ctrl-C is pressed."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.steps: list[str] = []

    def __enter__(self) -> None:
        self.steps.append("entering")
        if self.at == "enter":
            press()
        self.steps.append("entered")

    def __exit__(self, *_: object) -> None:
        self.steps.append("leaving")
        if self.at == "exit":
            press()
        self.steps.append("left")


def test_an_interrupt_of_plain_code_is_raised_where_it_comes() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), Unmarked():
        press()
        reached.append(True)
    assert not reached


@pytest.mark.parametrize("at", ["enter", "exit"])
def test_a_context_is_entered_and_left_as_a_whole(at: str) -> None:
    context = Pressed(at)
    with pytest.raises(KeyboardInterrupt), Unmarked():
        with context:
            if at == "enter":
                wait()
        wait()
    assert context.steps == ["entering", "entered", "leaving", "left"]


def test_an_interrupt_that_still_waits_comes_at_the_end() -> None:
    done = []

    @uninterrupted
    def work() -> None:
        press()
        done.append(True)

    with pytest.raises(KeyboardInterrupt), Unmarked():
        work()
    assert done


def test_a_context_that_takes_for_ever_to_enter_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeplay.sandbox.interrupts._MOST_DEFERRALS", 3)

    class Waiting:
        def __enter__(self) -> None:
            press()
            wait()

        def __exit__(self, *_: object) -> None: ...

    with pytest.raises(KeyboardInterrupt), Unmarked(), Waiting():
        pass


def test_no_exception_goes_where_cpp_asks_for_a_device() -> None:
    found = []

    class Asked(FakeTensorMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.append((func.namespace, harm_in(sys._getframe())))
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Asked() as mode:  # type: ignore[no-untyped-call]
        fake = mode.from_tensor(torch.ones(2))  # type: ignore[no-untyped-call]
        torch.ops.prim.device.default(fake)
        fake + 1
    harms = dict(found)
    assert harms["prim"] is Harm.ENDS_PROCESS and harms["aten"] is Harm.NONE


def test_an_interrupt_that_somebody_dropped_is_raised_again() -> None:
    with pytest.raises(KeyboardInterrupt), Unmarked(), contextlib.suppress(KeyboardInterrupt):
        press()


def test_an_interrupt_that_the_users_own_code_catches_is_the_users_affair() -> None:
    with NoModesLeft(), contextlib.suppress(KeyboardInterrupt):
        press()


def test_a_handler_that_the_user_has_set_is_asked_once() -> None:
    asked = []
    signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    try:
        with Unmarked(), Unmarked():
            press()
        assert asked == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_stages_of_other_threads_leave_the_handler_alone() -> None:
    found = []

    def work() -> None:
        with Unmarked():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
