"""Compiles for different sizes are bounded, counted, and warned of."""

from __future__ import annotations

import warnings

import torch

from support.compiled import compiled
from treeplay.backend.account import graph_reports
from treeplay.observe import counters
from treeplay.settings import settings
from treeplay.torch_compile import backend


def program(x):
    return x.sin() * x.shape[0]


def call(run, rows):
    x = torch.randn(rows, 2)
    torch.testing.assert_close(run(x), x.sin() * rows)


def test_Dplus5_the_size_unused_for_longest_goes_first():
    run = compiled(program, dynamic=True)
    with settings.changed(max_recordings_per_program=2):
        for rows in (3, 5, 3, 7, 3):  # 3 was used after 5, which makes room for 7
            call(run, rows)
    assert counters["sizes"]["compiled"] == 3


def test_D28_one_compile_for_each_size_that_came():
    run = compiled(program, dynamic=True)
    for rows in (4, 5, 4, 5):
        call(run, rows)
    assert dict(counters["sizes"]) == {"compiled": 2}


def test_D28_one_warning_suggests_to_pad():
    run = compiled(program, dynamic=True, most_sizes=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in range(3, 10):
            call(run, rows)
    texts = [str(item.message) for item in caught if "sets of sizes" in str(item.message)]
    assert len(texts) == 1 and "pad" in texts[0] and "more than 3" in texts[0]


def test_D28_an_option_forbids_to_record_sizes_that_change():
    run = compiled(program, dynamic=True, record_dynamic=False)
    call(run, 4)
    assert [skip.name for skip in graph_reports()[-1].skips] == ["dynamic_sizes"]
    torch._dynamo.reset()
    fixed = torch.compile(program, backend=backend, options={"inner": "aten", "record_dynamic": False}, dynamic=False)
    call(fixed, 4)
    assert graph_reports()[-1].skips == ()
