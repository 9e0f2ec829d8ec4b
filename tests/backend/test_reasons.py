"""D28 to D32 from the outside: each reason against a recording, provoked by a program of a few lines, on both devices."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.fx.traceback import annotate

from support.compiled import compiled as compiled_for_any_size
from support.compiled import new_reports
from support.recordings import on_a_tape
from treeplay.observe import counters
from treeplay.settings import settings

THE_LINE = "return torch.nonzero(x > 0) * 2 - 1  # the user's line"

compiled = partial(compiled_for_any_size, dynamic=False)
sizes_from_values = partial(torch._dynamo.config.patch, capture_dynamic_output_shape_ops=True)


def numbers(device: str, rows: int = 3) -> torch.Tensor:
    return torch.arange(1.0, rows * 2 + 1, device=device).reshape(rows, 2) / 4 - 0.7


def sized(x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x > 0) * 2 - 1  # the user's line


def marked(x: torch.Tensor) -> torch.Tensor:
    with annotate({"treeplay": "unrecorded"}):
        return x.sin() - 1


def total(x: torch.Tensor) -> torch.Tensor:
    return x.sin().sum() * 2


REASONS: dict[str, tuple[Callable[..., Any], bool, dict[str, Any]]] = {
    "operator": (sized, False, {}),
    "annotation": (marked, False, {}),
    "off": (total, False, {"record": False}),
    "dynamic_sizes": (total, True, {"record_dynamic": False}),  # a size inside; the result has none
}


@pytest.mark.parametrize("name", REASONS)
def test_D29_each_reason_is_told_alone_and_the_result_is_eagers(name: str, device: str) -> None:
    program, is_dynamic, options = REASONS[name]
    with sizes_from_values():
        run = compiled(program, dynamic=is_dynamic, **options)
        for call in range(3):
            ours, eagers = numbers(device) + call, numbers(device) + call
            torch.testing.assert_close(run(ours), program(eagers))
            assert torch.equal(ours, eagers)
    (report,) = new_reports()
    assert (report.outcome, [skip.name for skip in report.skips]) == ("skipped", [name]) and report.launch is None
    assert dict(counters["skips"]) == {"total": 1, name: 1} and "recorded" not in counters["graphs"]


def test_D29_the_backward_of_a_forward_that_is_not_recorded_is_not_either(device: str) -> None:
    w = numbers(device, 2).requires_grad_()
    run = compiled(lambda x, w: (marked(x @ w) * w.sum()).sum())
    run(numbers(device), w).backward()
    forward, backward = new_reports()
    assert [skip.name for skip in forward.skips] == ["annotation"]
    assert "forward_skipped" in [skip.name for skip in backward.skips]


def test_D30_a_skip_is_one_line_with_the_users_line_and_told_again_by_another_compile(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    for compiles in (1, 2):
        with caplog.at_level(logging.INFO, "treeplay.refusals"), sizes_from_values():
            run = compiled(sized)
            for _ in range(4):
                run(numbers(device))
        # Torch logs its sizes.
        told = [record.message for record in caplog.records if record.name == "treeplay.refusals"]
        assert len(told) == compiles and THE_LINE in told[-1]
        assert dict(counters["skips"]) == {"total": compiles, "operator": compiles}
        torch._dynamo.reset()
    with pytest.raises(Exception, match="a result whose shape depends on values") as failure, sizes_from_values():
        compiled(sized, record_or_fail=True)(numbers(device))
    assert THE_LINE in str(failure.value)


def test_D28_nine_sizes_give_one_warning_and_a_recording_each(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_tape(device, monkeypatch)
    run = compiled(lambda x: x.sin() * x.shape[0], dynamic=True)
    with warnings.catch_warnings(record=True) as caught, settings.changed(max_recordings_per_program=9):
        warnings.simplefilter("always")
        for rows in [*range(3, 12), *range(3, 12), *range(3, 12)]:
            x = numbers(device, rows)
            torch.testing.assert_close(run(x), x.sin() * rows)
    texts = [str(item.message) for item in caught if "sets of sizes" in str(item.message)]
    assert len(texts) == 1 and "more than 8" in texts[0] and "pad" in texts[0]
    kept = [report for report in new_reports() if report.launch is not None]
    assert {report.launch.stage for report in kept} == {"recorded"}  # type: ignore[union-attr]
    assert {item.role.value for item in kept[0].inputs if item.kind == "SymInt"} == {"plain"}  # D21


def test_D32_the_first_call_draws_what_an_unrecorded_one_draws(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_tape(device, monkeypatch)
    drawn = []
    for is_recorded in (False, True):
        torch._dynamo.reset()
        run = compiled(lambda x: torch.nn.functional.dropout(x, 0.4) * 2 - x, record=is_recorded, eager_random=True)
        torch.manual_seed(0)
        drawn.append([run(numbers(device, 20)) for _ in range(4)])
    for unrecorded, recorded in zip(*drawn, strict=True):
        assert torch.equal(unrecorded, recorded)
    launch = new_reports()[-1].launch
    assert launch is not None and launch.stage == "recorded" and launch.launches > 0


def test_Dplus3_an_input_that_overlaps_itself_is_recorded(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_tape(device, monkeypatch)
    run = compiled(lambda x: (x * 2).sin() - x.sum(0))
    for call in range(5):
        x = (torch.arange(5.0, device=device) + call).as_strided((3, 3), (1, 1))
        torch.testing.assert_close(run(x), (x * 2).sin() - x.sum(0))
    (report,) = new_reports()
    assert report.outcome == "recorded" and report.launch is not None and report.launch.launches >= 3


@pytest.mark.programs
def test_Dplus5_fifty_sizes_leave_four_recordings_and_all_are_right(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_tape(device, monkeypatch)
    run, memory = compiled(lambda x: x.sin() * x.shape[0] - x, dynamic=True, most_sizes=100), []
    with settings.changed(max_recordings_per_program=4):
        for rows in range(3, 53):
            x = numbers(device, rows)
            for _ in range(2 if device == "cpu" else 3):
                torch.testing.assert_close(run(x), x.sin() * rows - x)
            assert sum(report.launch is not None for report in new_reports()) <= 4
            if device == "cuda":
                memory.append(torch.cuda.memory_allocated())
    assert dict(counters["sizes"]) == {"compiled": 50, "dropped": 46}
    assert not memory or max(memory[10:]) <= memory[9] + 4 * 8192, memory  # sizes grow by a block of 512 bytes at most
