"""Wplus14: random programs over views, writes, duplicates, overlaps, flags and results are right, or refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import machine
from benchmarks.wrap_programs import Tally

from treeplay.torch_seam.flags import is_view_replay_enabled, set_view_replay
from wrap.aot.oracle import compare, grown, numbers, wrapped
from wrap.aot.programs import outcome

pytestmark = pytest.mark.programs

PLAIN: dict[str, Any] = {}
TYPED = {"is_typed": True}
SIZED = {"sizes": (2, 4)}
PROGRAMS = [
    *((seed, PLAIN) for seed in range(260)),
    *((seed, TYPED) for seed in range(180)),
    *((seed, SIZED) for seed in range(400, 440)),
    *((seed, TYPED | SIZED) for seed in range(500, 520)),
]
"""500 of those that `python -m benchmarks.wrap_programs` draws: over float32, over other dtypes, with sizes that change."""


@pytest.mark.parametrize("first", [0, *(pytest.param(k, marks=pytest.mark.soak) for k in (1, 2, 3))])
def test_Wplus14_random_programs_are_right_or_refused(first: int) -> None:
    found = [outcome(seed, **kind) for seed, kind in PROGRAMS[first::4]]
    valid = [item for item in found if item != "invalid"]
    assert sum(item != "right" for item in valid) <= len(valid) * 0.05, found


@pytest.mark.parametrize(
    "seed",
    [
        5334,  # a result that is a view is the base of another
        5624,  # an argument whose shape changes beside a write was laid at the start of its storage
        9725,  # an argument whose shape changes and changes back lost its gradient
        17501,  # as 5624
        19701,
    ],
)
def test_Wplus14_programs_that_were_wrong_once(seed: int) -> None:
    assert outcome(seed) == "right"


def test_Wplus14_a_second_trace_is_made_outside_of_the_first() -> None:
    """Within it the base of bytes of the second was to be made of fakes."""
    assert outcome(1193, is_typed=True) == "right"


def everything(a: Any, b: Any, x: Any, y: Any, z: Any) -> Any:
    a.mul_(2)
    y.add_(a)
    x.t_()
    w = y * 2
    return [x.view(3, 2, 1), a[1:], b * 2, z.view(-1), w, w.view(-1), w]


def everything_without_gradients(a: Any, b: Any, x: Any, y: Any, z: Any) -> Any:
    return [*everything(a, b, x, y, z), y]


def without_gradients(module: Any, inputs: Any) -> Any:
    """A graph that minds the grad mode, and leaves its list to the caller."""

    def run(args: list[Any]) -> Any:
        assert not torch.is_grad_enabled()
        return module(*args)

    return run


def arguments(grad: bool) -> list[Any]:
    a = numbers(4)
    whole = numbers(6, grad=True) * 1 if grad else numbers(6)
    return [a, a, numbers(2, 3), whole[:4], whole[2:]]


def mutants(source: str, grad: bool) -> Iterator[tuple[str, str]]:
    """The text of a call with one line left out, or made to do nothing."""
    lines = source.splitlines()
    for k, line in enumerate(lines[1:], start=1):
        step = line.strip()
        if re.match(r"check_|at\d+ = |if -|if len\(values\)|if is_transformed|if not \(type\(", step):
            continue  # these refuse calls that do not fit
        if step == "finally:":
            continue  # it has no effect of its own
        if grad and "set_grad_enabled" in step:
            continue  # in training the grad mode matters to callers under no_grad only
        if step.startswith("try:"):
            end = k + (4 if lines[k + 1].strip() == "finally:" else 2)
            yield step, "\n".join([*lines[:k], "    values = ()", *lines[end:]])
        elif step.startswith("finally: "):
            effects = step.removeprefix("finally: ").split("; ")
            for effect in effects:
                yield effect, "\n".join([*lines[:k], f"    finally: {effect}", *lines[k + 1 :]])
        elif step.startswith("if mode :="):
            yield step, "\n".join([*lines[:k], "    mode = True", *lines[k + 1 :]])
        elif line.startswith("        "):
            yield step, "\n".join([*lines[:k], "        pass", *lines[k + 1 :]])
        else:
            yield step, "\n".join([*lines[:k], *lines[k + 1 :]])


@pytest.mark.parametrize("grad", [False, True])
def test_Wplus14_no_line_of_a_call_can_be_left_out(grad: bool) -> None:
    function = everything if grad else everything_without_gradients

    def make() -> list[Any]:
        return arguments(grad)

    call = wrapped(function, make, inference=without_gradients)
    compare(function, call, make)
    tried = 0
    for name, text in mutants(call.source, grad):
        scope = dict(call.__globals__)
        exec(text, scope)
        try:
            with pytest.raises(Exception), torch.enable_grad():  # noqa: B017 — any failure tells
                compare(function, scope["call"], make)
                assert torch.is_grad_enabled() and not is_view_replay_enabled(), name
        finally:
            torch.set_grad_enabled(True)
            set_view_replay(False)
        tried += 1
    assert tried >= 10


def test_Wplus14_writes_cannot_be_swapped_with_views_or_layouts() -> None:
    def function(x: Any, y: Any) -> Any:
        x.t_()
        x.mul_(2)
        y.mul_(3)
        return [x.view(-1), y.detach()]

    def make() -> list[Any]:
        return [numbers(2, 3).t(), grown(3).detach()]

    call = wrapped(function, make)
    compare(function, call, make)
    lines = call.source.splitlines()
    at = next(k for k, line in enumerate(lines) if "lay_out" in line)
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    scope = dict(call.__globals__)
    exec("\n".join(lines), scope)
    with pytest.raises((AssertionError, RuntimeError)):
        compare(function, scope["call"], make)


def test_Wplus14_a_run_is_taken_up_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally()
    assert tally.left(0, 120) == [(0, 50), (50, 100), (100, 120)]
    tally.add((50, 100), Counter({"right": 40, "refused: write: …": 4, "invalid": 5, "wrong": 1}), ["program 60"])
    tally.add((0, 50), Counter({"right": 50}), [])
    assert tally.seeds == [(0, 100)] and tally.left(0, 120) == [(100, 120)]
    out = tmp_path / "found.json"
    machine.write_whole(tally.told(), out)
    again = Tally.read(out)
    assert again.told() | {"environment": None} == tally.told() | {"environment": None}
    assert again.told()["refused share"] == round(4 / 95, 4) and again.left(90, 110) == [(100, 110)]
    monkeypatch.setattr("benchmarks.machine.facts", lambda: {"treeplay": "other", "torch": torch.__version__})
    with pytest.raises(SystemExit, match="other"):
        Tally.read(out)
