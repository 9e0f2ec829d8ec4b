"""The driver leaves a record of every recording made and of every refusal."""

from __future__ import annotations

import torch

import treeplay
from treeplay.observe import compile_records, counters, records


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
