"""`out=` with a tensor of another size: a new and empty one is made of the right size, any other is refused with its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same, jit
from treeplay.errors import Refusal

Program = Callable[[torch.Tensor], Any]


def one(x: torch.Tensor) -> Any:
    out = torch.empty(0, device=x.device)
    result = torch.mul(x, 2, out=out)
    result.add_(1)
    return out, result.t() - 3


def two(x: torch.Tensor) -> Any:
    values, places = torch.empty(0, device=x.device), torch.empty(0, dtype=torch.int64, device=x.device)
    torch.max(x, 0, out=(values, places))
    return values * 2, places


def joined(x: torch.Tensor) -> Any:
    out = x.new_empty(7)
    torch.cat([x, x + 1], dim=1, out=out)
    return out - 1


def converted(x: torch.Tensor) -> Any:
    out = torch.empty(0, dtype=torch.float64, device=x.device)
    torch.exp(x.t(), out=out)
    return out.sum(0)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("program", [one, two, joined, converted])
def test_a_new_and_empty_tensor_is_made_of_the_results_size(program: Program, device: str) -> None:
    jitted = jit(program)
    for _ in range(4):
        x = torch.randn(2, 3, device=device)
        found, expected = jitted(x), program(x)
        assert_same(found, expected)
        if isinstance(expected, tuple):
            assert [item.stride() for item in found] == [item.stride() for item in expected]
    assert (jitted.statistics().refusals, jitted.statistics().replays) == (0, 3 if device == "cpu" else 2)


def test_a_result_that_is_kept_lies_as_eagers(device: str) -> None:
    class Kept:
        last: torch.Tensor | None = None

    kept = Kept()

    def program(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(0, device=x.device)
        kept.last = torch.sub(x, 1, out=out)
        return out.sum()

    jitted = jit(program)
    for _ in range(3):
        x = torch.randn(2, 3, device=device)
        jitted(x)
        assert kept.last is not None
        assert_same(kept.last, x - 1)


class Rate:
    value: float = 1.0

    def sub(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sub(x, self.value, out=torch.empty(0, device=x.device))


IN_ANOTHER_ORDER: dict[str, Program] = {
    "number": lambda x: torch.sub(x, 2.5, out=torch.empty(0, device=x.device)),
    "joined": lambda x: torch.cat([x, x - 1], out=torch.empty(0, device=x.device)),
    "stacked": lambda x: torch.stack([x, x - 1], out=torch.empty(0, device=x.device)),
    "read": lambda x: torch.exp(x, out=torch.empty(0, device=x.device)).as_strided((5,), (1,)) - 1,
}


@pytest.mark.parametrize("what", IN_ANOTHER_ORDER)
def test_it_lies_as_the_result_does_in_eager(what: str, device: str) -> None:
    program = IN_ANOTHER_ORDER[what]
    jitted = jit(program)
    for _ in range(4):
        x = torch.randn(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last)
        found, expected = jitted(x), program(x)
        assert_same(found, expected)
        assert found.stride() == expected.stride()
    assert jitted.statistics().refusals == 0


@pytest.mark.parametrize("values", [(1.5, 2.5, 3.5, 4.5), (1, 2, 3, 4)])
def test_it_lies_as_the_result_does_in_eager_where_a_number_varies(values: tuple[float, ...]) -> None:
    rate = Rate()
    jitted = treeplay.jit(rate.sub, lower="aten", on_refusal="raise")
    for value in values:
        rate.value, x = value, torch.randn(3, 4).t()
        found, expected = jitted(x), rate.sub(x)
        assert_same(found, expected)
        assert found.stride() == expected.stride()
    assert jitted.statistics().replays >= 2


def test_what_no_run_told_the_order_of_is_refused() -> None:
    rate = Rate()

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sub(x, 1, out=torch.empty(0)) if rate.value > 2 else x

    jitted = treeplay.jit(program, lower="aten")
    with pytest.warns(UserWarning, match="in which order it lies"):
        for value in (1.0, 3.0, 4.0, 5.0, 6.0):
            rate.value, x = value, torch.randn(3, 4).t()
            assert jitted(x).stride() == program(x).stride()


buffer = torch.empty(0)


def argument(x: torch.Tensor) -> Any:
    return torch.mul(torch.ones(2), 2, out=x)


def state(x: torch.Tensor) -> Any:
    return torch.mul(x, 2, out=buffer) * 3


def twice(x: torch.Tensor) -> Any:
    out = torch.empty(0)
    first = torch.mul(x, 2, out=out) + 1
    return torch.cat([x, first], out=out)


def viewed(x: torch.Tensor) -> Any:
    out = torch.empty(2)
    part = out[:1]
    torch.mul(x, 2, out=out)
    return part


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("program", [argument, state, twice, viewed])
def test_any_other_tensor_is_refused_with_the_line_that_does_it(program: Program) -> None:
    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    with pytest.raises(Refusal, match="another size") as caught:
        for _ in range(2):
            buffer.resize_(0)
            jitted(torch.randn(2, 3))
    assert caught.value.where is not None and caught.value.where.file == __file__
    assert "out=" in caught.value.where.source
