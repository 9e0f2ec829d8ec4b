"""Holders on a walk: tensors, weak references, context variables, threads' values, memory."""

from __future__ import annotations

import contextvars
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from support.reached import Holder, findings, labels, reached
from treeplay.guards.check.guards import Guards


def test_facts_of_tensors_are_guarded_with_what_hangs_on_them() -> None:
    tensor = torch.ones(2)
    tensor.rate = 2.0  # type: ignore[attr-defined]
    reach = reached(lambda t: t.rate, tensor)
    assert reach.tensors[id(tensor)][0] is tensor and "argument.rate" in labels(reach)


def test_a_weak_reference_is_guarded_and_keeps_nothing_alive() -> None:
    holder = Holder(a=1.0)
    reference = weakref.ref(holder)
    reach = reached(lambda: reference().a)  # type: ignore[union-attr]
    (alive,) = [asked for asked in reach.asked if asked.label.endswith("is alive")]
    assert alive.recorded is True
    del holder
    gc.collect()
    assert reference() is None and alive.ask() is False


def test_a_context_variable_is_asked() -> None:
    variable: contextvars.ContextVar[float] = contextvars.ContextVar("variable", default=1.0)
    reach = reached(lambda: variable.get())
    (asked,) = [asked for asked in reach.asked if asked.label == "variable.get()"]
    token = variable.set(2.0)
    assert asked.ask() == 2.0
    variable.reset(token)


def test_values_of_a_thread_are_asked() -> None:
    local = threading.local()
    local.a = 1.0
    reach = reached(lambda: local.a)
    (asked,) = [asked for asked in reach.asked if asked.label == "local.a"]
    assert asked.recorded == 1.0
    local.a = 2.0
    assert asked.ask() == 2.0


def test_names_of_a_thread_are_compared_by_what_they_are() -> None:
    local = threading.local()
    local.a = 1.0
    guards = Guards(reached(lambda: getattr(local, "b", 2.0)))
    assert guards.holds() and guards._quick is not None
    quick = guards._quick.by_python
    quick.__globals__["again"] = lambda: False  # the slow comparison
    assert guards.holds()
    local.b = 3.0
    assert not guards.holds()


@pytest.mark.parametrize("value", [bytearray(b"ab"), np.ones(2), memoryview(b"ab")], ids=lambda v: type(v).__name__)
def test_memory_is_guarded_by_its_bytes(value: Any) -> None:
    reach = reached(lambda v: None, value)
    assert [data.value is value for data in reach.data] == [True]


def test_large_memory_is_not_compared_and_objects_in_an_array_are_entered() -> None:
    large, objects = np.zeros(1 << 20), np.array([Holder()])
    found = findings(lambda a, b: None, large, objects)
    assert [value is large for value, _ in found.large] == [True]
    reach = found.dependencies
    assert [data.value is objects for data in reach.data] == [True]
    assert any(value is objects[0] for value, _, _ in reach.kinds)
