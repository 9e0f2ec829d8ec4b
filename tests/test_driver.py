"""The driver leaves a record of every recording made and of every refusal."""

from __future__ import annotations

import pytest
import torch

import treeplay
from treeplay.codegen.compiler import Compiler
from treeplay.observe import compile_records, counters, records
from treeplay.record import front, lowered


def test_a_recording_is_recorded_with_its_stages():
    compile_records.clear()
    before = counters["recordings"]["aten"]
    jitted = treeplay.jit(lambda x: x * 3 - 1, lower="aten")
    for _ in range(3):
        jitted(torch.ones(2))
    (made,) = records()
    assert (made.kind, made.lowering, made.refusal) == ("inference", "aten", None)
    assert [stage for stage, _ in made.seconds] == ["trace", "compare", "plan", "lower", "record", "wrap"]
    assert counters["recordings"]["aten"] == before + 1


def test_a_refusal_is_recorded_with_its_line():
    compile_records.clear()
    jitted = treeplay.jit(lambda x: x * x.sum().item(), lower="aten")
    for _ in range(3):
        jitted(torch.ones(2))
    (made,) = records()
    assert made.lowering is None
    assert "item" in made.refusal
    assert made.where.file == __file__


def test_a_program_on_another_device_is_refused_with_its_line():
    jitted = treeplay.jit(lambda x: x * 3 - 1, on_refusal="raise")
    x = torch.ones(2, device="meta")
    jitted(x)
    with pytest.raises(treeplay.Refusal, match="on meta") as caught:
        jitted(x)
    assert caught.value.where.file == __file__


def test_a_lowering_that_fails_is_passed_over_and_named(monkeypatch):
    def fails(graph, **options):
        raise treeplay.LoweringError("cannot take this graph")

    monkeypatch.setattr(lowered, "lower_inductor", fails)
    monkeypatch.setattr(front, "find_compiler", lambda: Compiler("/usr/bin/c++", "found"))
    jitted = treeplay.jit(lambda x: x * 3 - 1)
    for _ in range(3):
        assert torch.equal(jitted(torch.ones(2)), torch.full((2,), 2.0))
    assert jitted.statistics().keys[0].recordings[0].lowering == "aten"
    assert "passed over inductor: cannot take this graph" in jitted.explain()
