"""A line on a terminal while something takes long."""

from __future__ import annotations

import io
import threading
import time
from types import SimpleNamespace

import pytest
import torch

import treeplay
from treeplay.observe import progress as module
from treeplay.observe.progress import progress
from treeplay.sandbox.generators import has_company


class Terminal(io.StringIO):
    """Standard error as a terminal is."""

    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.told.set()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=made))  # pytest has its own in the real one
    monkeypatch.setattr(module, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(module, "EACH_SECONDS", 0.01)
    return made


def test_what_takes_long_is_told_with_its_seconds_and_wiped_out_at_the_end(terminal: Terminal) -> None:
    with progress("compiling"):
        assert terminal.told.wait(10)
    assert terminal.getvalue().startswith("\r\x1b[Ktreeplay: compiling, 0 s")
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_what_is_quick_is_not_told(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_SECONDS", 60.0)
    with progress("compiling"):
        pass
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("why", ["no terminal", "switched off", "closed", "none"])
def test_without_a_terminal_nothing_starts(why: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    stream = {"no terminal": io.StringIO(), "switched off": terminal, "closed": closed, "none": None}[why]
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=stream))
    if why == "switched off":
        monkeypatch.setenv("TREEPLAY_PROGRESS", "0")
    before = threading.active_count()
    with progress("compiling"):
        assert threading.active_count() == before


def test_the_thread_that_tells_is_nobodys_company_and_ends(terminal: Terminal) -> None:
    before, had_company = threading.active_count(), has_company()
    with progress("compiling"):
        assert terminal.told.wait(10)
        assert has_company() == had_company
    assert threading.active_count() == before and not module.own_threads


def test_a_terminal_that_goes_away_breaks_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(text: str) -> int:
        raise OSError("gone")

    monkeypatch.setattr(terminal, "write", write)
    with progress("compiling"):
        time.sleep(0.05)


@pytest.mark.compile
def test_a_compile_that_takes_long_is_told(terminal: Terminal) -> None:
    jitted, x = treeplay.jit(lambda x: (x * 3 - 1).exp(), lower="inductor"), torch.randn(5)
    for _ in range(3):
        torch.testing.assert_close(jitted(x), (x * 3 - 1).exp())
    assert "treeplay: Inductor compiles 3 operators, 0 s" in terminal.getvalue()
