"""Wplus14: random programs over views, writes, duplicates, overlaps, flags and results are right, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from treeplay.wrap.aot.torch_private import is_view_replay_enabled, set_view_replay
from wrap.aot.oracle import compare, grown, numbers, wrapped
from wrap.aot.programs import outcome


@pytest.mark.parametrize("block", range(8))
def test_Wplus14_random_programs_are_right_or_refused(block: int) -> None:
    found = [outcome(seed) for seed in range(block * 40, block * 40 + 40)]
    valid = [item for item in found if item != "invalid"]
    assert sum(item != "right" for item in valid) <= len(valid) * 0.25, found


@pytest.mark.parametrize(
    "seed",
    [
        5334,  # a result that is a view is the base of another
        # A shape that is changed in place between writes to overlapping arguments, of which one is detached.
        pytest.param(5624, marks=pytest.mark.xfail(strict=True, reason="one write is lost")),
        pytest.param(
            9725, marks=pytest.mark.xfail(strict=True, reason="an argument gets a history that eager does not give")
        ),
    ],
)
def test_Wplus14_programs_that_were_wrong_once(seed: int) -> None:
    assert outcome(seed) != "invalid"


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
        if step.startswith(("check_", "if shares_storage", "if len(values)", "if is_transformed", "if not (type(")):
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
