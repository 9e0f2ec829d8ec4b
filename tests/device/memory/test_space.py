"""Whether a device has address spaces, decided without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from treeplay.device.cuda.memory import mapping, native, scratch, space
from treeplay.errors import InternalError


class Driver:
    """Notes the calls, and fails in one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: str = "") -> None:
        self.calls: list[str] = []
        names = ("reserve", "make_memory", "map_memory", "allow", "unmap", "release_memory", "release_addresses")
        for name in names:
            monkeypatch.setattr(mapping, name, self._note(name, fails))
        monkeypatch.setattr(mapping, "granularity", lambda index: 2 << 20)
        monkeypatch.setattr(space, "maps_memory", lambda: True)
        monkeypatch.setattr(space.allocator, "has_pools_of_ours", lambda: True)
        monkeypatch.setattr(native, "functions", lambda: object())

    def _note(self, name: str, fails: str) -> Any:
        def call(*_: Any) -> int:
            self.calls.append(name)
            if name == fails:
                raise InternalError(f"{name} failed")
            return 1

        return call


def test_a_device_that_maps_memory_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    assert space.can_be_made.__wrapped__(0)
    assert driver.calls.count("release_memory") == driver.calls.count("release_addresses") == 1


@pytest.mark.parametrize("fails", ["reserve", "make_memory", "map_memory", "allow"])
def test_one_that_does_not_has_none_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    driver = Driver(monkeypatch, fails)
    assert not space.can_be_made.__wrapped__(0)
    made = {"reserve": "release_addresses", "make_memory": "release_memory"}
    for make, release in made.items():
        assert driver.calls.count(release) == (make in driver.calls and make != fails)


def test_without_a_compiler_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    monkeypatch.setattr(native, "functions", lambda: None)
    assert not space.can_be_made.__wrapped__(0) and not driver.calls


@pytest.mark.parametrize("fails", ["reserve", "pool"])
def test_a_space_that_cannot_be_made_keeps_nothing(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    driver = Driver(monkeypatch, fails)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=1 << 30))
    monkeypatch.setattr(space, "address_in", lambda library, name: 0)
    monkeypatch.setattr(space, "AddressPool", driver._note("pool", fails))
    with pytest.raises(InternalError, match=fails):
        space.AddressSpace(scratch.Scratch(0))
    assert driver.calls.count("release_memory") == driver.calls.count("make_memory") == 2
    assert driver.calls.count("release_addresses") == (fails == "pool")
