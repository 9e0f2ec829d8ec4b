"""Behind `torch.compile` on a GPU: what is recorded and what is not, why, and that the results are eager's in each case."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.fx.traceback import annotate

from support.compiled import compiled as compiled_for_any_size
from support.compiled import new_reports
from treeplay.backend.inner import boxed
from treeplay.observe import counters

pytestmark = pytest.mark.gpu

compiled = partial(compiled_for_any_size, dynamic=False)


@pytest.fixture(autouse=True)
def fresh_counters(fresh_dynamo: None) -> None:
    torch._dynamo.utils.counters.clear()


def numbers(*size: int) -> torch.Tensor:
    return torch.arange(1.0, torch.Size(size).numel() + 1, device="cuda").reshape(size) / 4 - 0.7


def outcomes() -> list[str]:
    return [report.outcome for report in new_reports()]


def test_D22_an_offset_that_changes_compiles_nothing_anew() -> None:
    run = compiled(lambda x: x.sin() * 2 - x)
    base = numbers(64)
    for offset in (0, 4, 1, 3, 0, 2):
        x = base[offset : offset + 32]
        torch.testing.assert_close(run(x), x.sin() * 2 - x)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1 and outcomes() == ["recorded"]


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("inner", ["aten", "inductor"])
def test_D23_a_misaligned_argument_that_is_written_is_changed_after_an_aligned_compile(
    inner: str, is_recorded: bool
) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    run = compiled(program, inner=inner, record=is_recorded)
    run(numbers(32))
    for offset in (1, 1, 1, 0, 1, 0, 2):  # the first of these is captured
        base, twin = numbers(33 + offset), numbers(33 + offset)
        torch.testing.assert_close(run(base[offset : 32 + offset]), program(twin[offset : 32 + offset]))
        assert torch.equal(base, twin)
    assert outcomes() == ["recorded" if is_recorded else "skipped"]
    assert is_recorded or counters["copies"]["misaligned input"] == 5


def test_D21_the_result_of_one_recording_is_the_input_of_the_next() -> None:
    first, second = compiled(lambda x: x * 2 + 1), compiled(lambda y: y.sin() - y)
    for k in range(6):
        x = numbers(8) + k
        torch.testing.assert_close(second(first(x)), (x * 2 + 1).sin() - (x * 2 + 1))
    assert outcomes() == ["recorded", "recorded"]
    for report in new_reports():  # a result is a tensor like any other, which is read where it lies
        assert report.launch.stage == "recorded" and report.launch.copied_bytes == 0 and report.launch.launches >= 4


def written(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def on_the_host(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + torch.ones(3).sum().to(x.device)


def read(x: torch.Tensor) -> torch.Tensor:
    return x[torch.nonzero(x > 1).squeeze(-1)] * 2


def marked(x: torch.Tensor) -> torch.Tensor:
    with annotate({"treeplay": "unrecorded"}):
        return x.sin() - 1


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin() - x


@pytest.mark.parametrize(
    ("program", "options", "reasons"),
    [
        (on_the_host, {}, {"cpu_tensor"}),
        (marked, {}, {"annotation"}),
        (plain, {"record": False}, {"off"}),
        (marked, {"record": False}, {"annotation", "off"}),
    ],
)
def test_D29_each_reason_on_a_gpu(program: Callable[..., Any], options: dict[str, Any], reasons: set[str]) -> None:
    run = compiled(program, **options)
    for k in range(4):
        x = numbers(8) + k
        torch.testing.assert_close(run(x.clone()), program(x.clone()))
    assert "recorded" not in outcomes()
    report = next(report for report in new_reports() if report.skips)
    assert {skip.name for skip in report.skips} >= reasons
    assert counters["skips"]["total"] >= 1


def test_D29_sizes_that_depend_on_the_data_are_right() -> None:
    run = compiled(read)
    for k in range(4):
        x = numbers(8) + k / 3
        torch.testing.assert_close(run(x), read(x))


def test_D28_sizes_that_come_again_have_a_recording_each() -> None:
    run = compiled(plain, dynamic=True)
    for rows in (4, 5, 4, 5, 4, 5):
        x = numbers(rows, 2)
        torch.testing.assert_close(run(x), plain(x))
    assert counters["sizes"]["compiled"] == 2 and outcomes() == ["recorded", "recorded"]


def test_D32_the_first_call_draws_what_an_unrecorded_one_draws() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.4) * 2

    drawn = []
    for is_recorded in (False, True):
        torch._dynamo.reset()
        run = compiled(program, record=is_recorded)
        torch.manual_seed(0)
        drawn.append([run(numbers(64)) for _ in range(4)] + [torch.cuda.get_rng_state()])
    for unrecorded, recorded in zip(*drawn, strict=True):
        assert torch.equal(unrecorded, recorded)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_D32_a_body_that_raises_only_under_capture_is_right_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    def inner(module: Any, inputs: Any) -> Any:
        run = boxed(module)

        def call(args: list[Any]) -> Any:
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("only under capture")
            return run(args)

        return call

    with caplog.at_level(logging.INFO, "treeplay.refusals"):
        run = compiled(plain, inner=inner)
        for k in range(5):
            x = numbers(8) + k
            torch.testing.assert_close(run(x), plain(x))
    assert len(caplog.records) == 1 and "only under capture" in caplog.text
    assert outcomes() == ["skipped"] and dict(counters["skips"]) == {"total": 1, "failed": 1}
    with pytest.raises(Exception, match="only under capture"):
        torch._dynamo.reset()
        run = compiled(plain, inner=inner, record_or_fail=True)
        for _ in range(3):
            run(numbers(8))


@pytest.mark.parametrize("inner", ["aten", "inductor"])
def test_Dplus3_an_input_that_overlaps_itself_is_recorded(inner: str) -> None:
    run = compiled(lambda x: (x * 2).sin() - x.sum(0), inner=inner)
    for k in range(5):
        x = (numbers(5) + k).as_strided((3, 3), (1, 1))
        torch.testing.assert_close(run(x), (x * 2).sin() - x.sum(0))
    assert outcomes() == ["recorded"]


def test_O1_a_compile_and_three_calls_are_counted() -> None:
    run = compiled(plain)
    for _ in range(5):
        run(numbers(8))
    (report,) = new_reports()
    assert counters["graphs"]["recorded"] == 1 and report.launch.stage == "recorded" and report.launch.launches >= 1
    assert counters["compiles"]["inference"] == 1 and "total" not in counters["skips"]
