"""Custom operators that nobody uses the results of run in each call: they are there for what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from support import jit

seen: list[float] = []


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    library = torch.library.Library("treeplay_acting", "FRAGMENT")
    library.define("note(Tensor x) -> ()")
    library.define("measured(Tensor x) -> Tensor")
    library.impl("note", lambda x: seen.append(float(x.sum())), "CPU")
    library.impl("note", lambda x: None, "Meta")
    library.impl("measured", lambda x: (seen.append(float(x.sum())), x + 1)[1], "CPU")
    library.impl("measured", torch.empty_like, "Meta")
    yield
    library._destroy()
    seen.clear()


def noting(x: torch.Tensor) -> None:
    torch.ops.treeplay_acting.note(x)


def measuring(x: torch.Tensor) -> None:
    torch.ops.treeplay_acting.measured(x)


@pytest.mark.parametrize("act", [noting, measuring])
@pytest.mark.parametrize("lower", ["aten", "auto"])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_it_acts_once_in_each_call(act: Callable[..., Any], lower: str, needs_gradient: bool) -> None:
    weight = torch.tensor(1.5, requires_grad=needs_gradient)

    def program(x: torch.Tensor) -> torch.Tensor:
        act(x * 3)
        return x * weight

    jitted = jit(program, lower=lower)
    seen.clear()
    for call in range(5):
        assert torch.equal(jitted(torch.full((2,), float(call))), torch.full((2,), call * 1.5))
    assert seen == [call * 6.0 for call in range(5)]
    statistics = jitted.statistics()
    assert (statistics.replays, statistics.keys[0].recordings[0].lowering) == (4, "aten")


@pytest.mark.parametrize("act", [noting, measuring])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_it_acts_once_in_each_call_of_a_compiled_graph(act: Callable[..., Any], needs_gradient: bool) -> None:
    weight = torch.tensor(1.5, requires_grad=needs_gradient)

    def program(x: torch.Tensor) -> torch.Tensor:
        act(x * 3)
        return x * weight

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="treeplay", options={"inner": "aten"})
    seen.clear()
    for call in range(4):
        compiled(torch.full((2,), float(call)))
    torch._dynamo.reset()
    assert seen == [call * 6.0 for call in range(4)]
