"""What a program finds of errors that are being handled while it runs is eager's: treeplay's own are none of them."""

from __future__ import annotations

import gc
import sys
import traceback
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import treeplay


def needs_a_value(x: torch.Tensor) -> torch.Tensor:
    if x.sum().item() > 100.0:
        raise ValueError("too large")
    return x * 2 - 1


def reads_a_text(x: torch.Tensor, texts: SimpleNamespace) -> torch.Tensor:
    return x * int(texts.text) - 1


def raised_by(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except ValueError as error:
        return error
    raise AssertionError("it raised nothing")


@pytest.mark.filterwarnings("ignore:treeplay runs")
def test_a_program_that_is_refused_finds_no_error_of_treeplays() -> None:
    seen: list[Any] = []

    @treeplay.jit(lower="aten")
    def step(x: torch.Tensor) -> torch.Tensor:
        seen.append(sys.exc_info()[0])
        return needs_a_value(x)

    for _ in range(4):
        step(torch.ones(3))
    assert seen == [None] * 4


@pytest.mark.filterwarnings("ignore:treeplay runs")
@pytest.mark.parametrize("call", range(3))
def test_what_a_refused_program_raises_has_no_error_of_treeplays_behind_it(call: int) -> None:
    step = treeplay.jit(needs_a_value, lower="aten")
    for _ in range(call):
        step(torch.ones(3))
    error = raised_by(lambda: step(torch.full((3,), 1000.0)))
    assert error.__context__ is None and error.__cause__ is None


@pytest.mark.filterwarnings("ignore:treeplay runs")
def test_a_bare_raise_in_the_call_that_is_refused_raises_what_eager_does() -> None:
    @treeplay.jit(lower="aten")
    def step(x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() < 0:
            raise
        return x * 2 - 1

    step(torch.ones(3))
    with pytest.raises(RuntimeError, match="No active exception"):
        step(-torch.ones(3))


def test_what_a_program_raises_while_it_is_recorded_anew_has_eagers_context() -> None:
    texts = SimpleNamespace(text="3")
    step = treeplay.jit(lambda x: reads_a_text(x, texts), lower="aten")
    for text in "3334":
        texts.text = text
        step(torch.ones(3))
    texts.text = "x"
    assert raised_by(lambda: step(torch.ones(3))).__context__ is None
    try:
        raise KeyError("the user's own")
    except KeyError as own:
        assert raised_by(lambda: step(torch.ones(3))).__context__ is own


@pytest.mark.parametrize("has_caught", [True, False])
def test_what_a_replay_raises_has_eagers_context(has_caught: bool) -> None:
    table = nn.Embedding(4, 2)
    step = treeplay.jit(lambda index: table(index) * 2 - 1, lower="aten")
    for _ in range(4):
        step(torch.tensor([1, 3]))
    raised = None
    try:
        try:
            if has_caught:
                raise KeyError("the user's own")
        finally:
            step(torch.tensor([1, 9]))
    except IndexError as error:
        raised = error
    assert raised is not None
    chain = [type(item) for item in (raised.__context__, raised.__cause__) if item is not None]
    assert chain == [KeyError] * has_caught
    assert "treeplay.errors" not in "".join(traceback.format_exception(raised))


@pytest.mark.parametrize("calls", [0, 2, 4])
def test_an_error_that_is_let_go_lets_go_of_the_calls_tensors(calls: int) -> None:
    table = nn.Embedding(4, 2)
    step = treeplay.jit(lambda index: table(index) * 2 - 1, lower="aten")
    for _ in range(calls):
        step(torch.tensor([1, 3]))
    gc.collect()
    gc.disable()
    try:
        index = torch.tensor([1, 9])
        gone = weakref.ref(index)
        with pytest.raises(IndexError) as raised:
            step(index)
        del raised, index
        assert gone() is None
    finally:
        gc.enable()
