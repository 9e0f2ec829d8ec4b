"""The facts about a graph that decide whether it is recorded, as a user meets them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.taped_gpu import TapedGpu, capture_on_the_cpu
from treeplay import graph_reports


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> TapedGpu:
    return capture_on_the_cpu(monkeypatch)


@pytest.mark.parametrize("view", [torch.conj, torch._neg_view], ids=["conjugated", "negated"])
def test_a_graph_with_an_input_that_reads_otherwise_than_its_memory_is_not_recorded(gpu: TapedGpu, view: Any) -> None:
    """A recording reads memory where an input lies, and knows nothing of the bits that conjugate or negate it."""
    known = {report.graph_id for report in graph_reports()}
    compiled = torch.compile(lambda x, w: (x @ w) * (x - 1), backend="treeplay", options={"inner": "aten"})
    for _ in range(4):
        x, w = view(torch.randn(3, 3, dtype=torch.complex64)), torch.randn(3, 3, dtype=torch.complex64)
        torch.testing.assert_close(compiled(x, w), (x @ w) * (x - 1))
    (report,) = [report for report in graph_reports() if report.graph_id not in known]
    assert [skip.name for skip in report.skips] == ["input_kind"] and "`x`" in str(report.skips[0])
    torch.compiler.reset()
