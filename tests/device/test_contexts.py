"""A thread gets a context before it first calls the driver, once, and keeps the device that it is on. Needs no GPU."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
import torch

from treeplay.device.cuda import contexts


class Machine:
    """Two devices: which of them have a context, and what was done in which thread."""

    def __init__(self, *with_context: int) -> None:
        self.with_context = with_context
        self.current = 0
        self.done: list[str] = []

    def call(self, name: str, *args: object) -> None:
        self.done.append(name)
        if name == "cuCtxSetCurrent":
            self.current = 77

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        self.done.append(f"on {index}")
        self.current = 77
        yield


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(0)
    monkeypatch.setattr(contexts, "call", made.call)
    monkeypatch.setattr(contexts, "current_context", lambda: made.current)
    monkeypatch.setattr("treeplay.torch_seam.allocator.has_context", lambda index: index in made.with_context)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", made.device)
    return made


def test_a_thread_without_a_context_gets_that_of_its_device(machine: Machine) -> None:
    here = contexts.Here()
    assert here.has_context and here.has_context
    assert machine.done == [
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",
        "cuDevicePrimaryCtxRelease_v2",
    ]


def test_each_thread_is_asked_about_once(machine: Machine) -> None:
    here = contexts.Here()
    for _ in range(2):
        machine.current = 0
        thread = threading.Thread(target=lambda: (here.has_context, here.has_context))
        thread.start()
        thread.join()
    assert machine.done.count("cuCtxSetCurrent") == 2


def test_a_context_of_the_users_own_is_left_alone(machine: Machine) -> None:
    machine.current = 5
    assert contexts.Here().has_context and not machine.done


def test_no_context_is_made_on_a_device_that_has_none(machine: Machine) -> None:
    machine.with_context = (1,)  # the recording's
    assert contexts.Here().has_context and machine.done == ["on 1"]


def test_where_nothing_has_used_a_gpu_torch_makes_the_context(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.with_context = ()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: machine.done.append(f"a stream of {device}"))
    assert contexts.Here().has_context
    assert machine.done[0] == "a stream of 0" and "cuCtxSetCurrent" in machine.done
