"""Jitted programs with changing sizes, compiled once for all of them by Inductor, beside eager."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from backend.shapes.test_any_size import PROGRAMS, SIZES, equal_results, many_results
from support.no_trial import NoTrial
from treeplay.backend.shapes import program_any_size
from treeplay.observe import internal_errors
from treeplay.torch_seam.dynamo import compile_lock
from treeplay.torch_seam.symbols import numpy_asks
from treeplay.trace import rerun
from treeplay.trace.numbers.numpy_numbers import meet_numpys
from treeplay.trace.turn import turn
from treeplay.tree.all_sizes import compile as compile_all_sizes
from treeplay.tree.tiers import compile_thread

pytestmark = pytest.mark.compile


@pytest.fixture(autouse=True)
def in_the_background(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # that ends after this
    with treeplay.settings.changed(tiers="background"):
        yield
    assert compile_thread.wait(120)
    assert not internal_errors()


@pytest.fixture(autouse=True)
def no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_all_sizes, "SizesTrial", NoTrial)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 16), nn.Linear(16, 5)
        self.register_buffer("positions", torch.randn(40, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.embedding(tokens) + self.positions[: tokens.shape[1]])  # type: ignore[index]
        found: torch.Tensor = self.head(x.mean(1)) / math.sqrt(16) - x.shape[1]
        return found


def calls_served(jitted: Any) -> int:
    keys = [key for key in jitted.statistics().keys if "any" in key.arguments]
    return sum(recording.replays for key in keys for recording in key.recordings)


def compiled(program: Any, *examples: Any) -> Any:
    jitted = treeplay.jit(program)
    for example in examples:
        jitted(example)
        assert compile_thread.wait(120)
    return jitted


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_beside_eager_for_all_sizes(name: str) -> None:
    program = PROGRAMS[name]
    with torch.no_grad():
        jitted = compiled(program, *(torch.randn(size, 6) for size in (4, 5, 5)))
        served = 0
        for size in SIZES:
            x = torch.randn(size, 6)
            expected = program(x)
            found = jitted(x)
            torch.testing.assert_close(found, expected)
            for mine, other in zip(
                *(out if isinstance(out, tuple) else (out,) for out in (found, expected)), strict=True
            ):
                assert mine.stride() == other.stride()
            assert compile_thread.wait(120)
            served = calls_served(jitted)
        assert served >= 4 or name == "a tensor of the size", jitted.explain()


@pytest.mark.parametrize("program", [many_results, equal_results])
def test_results_that_are_more_than_new_tensors_are_right_too(program: Any) -> None:
    with torch.no_grad():
        jitted = compiled(program, *(torch.randn(size, 6) for size in (4, 5, 5)))
        for size in SIZES:
            x = torch.randn(size, 6)
            torch.testing.assert_close(jitted(x), program(x))
            assert compile_thread.wait(120)


def test_nothing_of_a_trace_stays_behind_when_another_thread_has_traced_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_come, may_begin, waits = (threading.Event() for _ in range(3))

    def begin() -> Any:
        has_come.set()
        may_begin.wait(30)
        return compile_lock()

    def wait() -> Any:
        waits.set()
        return turn()

    compiled(lambda x: x * x.shape[0], torch.randn(4, 6), torch.randn(5, 6))  # so that all is imported
    monkeypatch.setattr(program_any_size, "compile_lock", begin)
    monkeypatch.setattr(rerun, "turn", wait)
    program = PROGRAMS["a mean over rows"]
    with torch.no_grad(), ThreadPoolExecutor(1) as other:
        jitted = treeplay.jit(program)
        jitted(torch.randn(4, 6))
        x = torch.randn(5, 6)
        found = other.submit(torch.no_grad()(jitted), x)
        assert has_come.wait(30)
        with turn(), numpy_asks(meet_numpys):
            may_begin.set()
            assert waits.wait(30)
        torch.testing.assert_close(found.result(), program(x))
        assert compile_thread.wait(120)
        jitted(x)
    assert calls_served(jitted) == 1
    assert not hasattr(torch.SymFloat, "__array_ufunc__") and not hasattr(torch.SymInt, "__array_ufunc__")


def test_a_transformer_for_all_lengths_and_batches() -> None:
    model = Encoder().eval()
    with torch.no_grad():
        jitted = compiled(model, *(torch.randint(20, size) for size in ((2, 7), (2, 9), (2, 9), (3, 9), (3, 9))))
        before = calls_served(jitted)
        for size in ((2, 12), (5, 3), (4, 40), (7, 8)):
            tokens = torch.randint(20, size)
            torch.testing.assert_close(jitted(tokens), model(tokens))
        assert calls_served(jitted) == before + 4, jitted.explain()
        with pytest.raises(RuntimeError, match="must match"):
            jitted(torch.randint(20, (2, 41)))
        with pytest.raises(IndexError):
            jitted(torch.full((3, 5), 20))
        torch.testing.assert_close(jitted(tokens), model(tokens))


def test_a_cache_that_grows() -> None:
    weight = torch.randn(8, 24)

    def token(x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value = (x @ weight).chunk(3, -1)
        keys, values = torch.cat([keys, key], 1), torch.cat([values, value], 1)
        return F.scaled_dot_product_attention(query, keys, values), keys, values

    with torch.no_grad():
        jitted = treeplay.jit(token)
        for _ in range(3):
            mine = theirs = (torch.randn(1, 1, 8), torch.zeros(1, 0, 8), torch.zeros(1, 0, 8))
            for _ in range(12):
                mine, theirs = jitted(*mine), token(*theirs)
                torch.testing.assert_close(mine, theirs)
                assert compile_thread.wait(120)
        assert calls_served(jitted) > 20, jitted.explain()


def test_code_of_another_trace_serves_no_sizes_that_it_was_not_asked_for() -> None:
    """Inductor's cache of graphs looks at what was asked of the numbers among a graph's inputs, and sizes are none of them."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [(x * 2).diagonal() * 2 - 1, x + 1]

    with torch.no_grad():
        for sizes in ((4, 5, 4), (4, 3, 4), (5, 6, 5)):
            jitted = treeplay.jit(program)
            for size in (*sizes, 6, 7, 3, 2, 4, 6, 7, 3, 2):
                x = torch.randn(size, 4)
                torch.testing.assert_close(jitted(x), program(x))
                assert compile_thread.wait(120)
            assert calls_served(jitted) > 3


def test_a_layer_whose_result_would_lie_otherwise_is_recorded_for_each_size() -> None:
    """Attention takes one large operator in evaluation, and smaller ones under a trace with symbols."""
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with torch.no_grad():
        jitted = compiled(lambda x: layer(x, x, x)[0], *(torch.randn(2, size, 8) for size in (4, 5, 5)))
        for size in (6, 5, 4, 6):
            x = torch.randn(2, size, 8)
            found, expected = jitted(x), layer(x, x, x)[0]
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected)
    assert calls_served(jitted) == 0 and "lie in memory with strides" in jitted.explain()
