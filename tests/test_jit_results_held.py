"""Results are eager's in every respect, and nothing writes to memory that somebody holds, however it is held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same

CALLS = 6


def assert_recorded(program: Any) -> None:
    assert program.statistics().replays > 0
    launch = program.statistics().keys[-1].recordings[-1].launch
    assert launch.stage in ("bound", "recorded")


def many(x: torch.Tensor) -> Any:
    y = (x * 2 - 1).t()
    z = (x + 3).flatten()[2:]
    return y, y[0], x, x[0], None, 3, x.new_empty(0), z


def described(result: Any) -> list[Any]:
    """Strides, offsets, dtypes, and which of the results share memory."""
    tensors = [leaf for leaf in result if isinstance(leaf, torch.Tensor)]
    starts = [leaf.untyped_storage().data_ptr() for leaf in tensors if leaf.numel()]
    return [
        [(leaf.shape, leaf.stride(), leaf.storage_offset(), leaf.dtype, leaf.device) for leaf in tensors],
        [starts.index(start) for start in starts],
        [leaf is result[2] for leaf in result],
        [leaf for leaf in result if not isinstance(leaf, torch.Tensor)],
    ]


@pytest.mark.parametrize("lower", ["aten", "capture"])
def test_T19_results_are_as_eager_gives_them_and_new_in_each_call(lower: str, device: str) -> None:
    recorded, kept = treeplay.jit(many, lower=lower), []
    for call in range(CALLS):
        x = torch.arange(12.0, device=device).view(3, 4) + call
        found, expected = recorded(x), many(x)
        assert found[2] is x and described(found) == described(expected)
        assert_same(found, expected)
        kept.append((found, [leaf.clone() for leaf in found if isinstance(leaf, torch.Tensor)]))
    for found, before in kept:
        assert_same([leaf for leaf in found if isinstance(leaf, torch.Tensor)], before)
    assert_recorded(recorded)


def by_graph(y: torch.Tensor) -> Any:
    weight = torch.ones_like(y, requires_grad=True)
    return y, weight * y  # which autograd has saved


def by_dlpack(y: torch.Tensor) -> Any:
    return torch.from_dlpack(y)


def by_numpy(y: torch.Tensor) -> Any:
    if y.device.type != "cpu":
        pytest.skip("NumPy reads the host's memory")
    return torch.from_numpy(y.numpy())


def by_storage(y: torch.Tensor) -> Any:
    return torch.empty(0, device=y.device).set_(y.untyped_storage(), 0, y.shape, y.stride())


HOLDS: list[Callable[[torch.Tensor], Any]] = [
    lambda y: y,
    lambda y: y[1:],
    lambda y: y.detach(),
    by_storage,
    by_graph,
    by_dlpack,
    by_numpy,
]
HOW = ["object", "view", "detached", "storage", "graph", "dlpack", "numpy"]


@pytest.mark.parametrize("hold", HOLDS, ids=HOW)
def test_T20_a_result_that_is_held_is_not_written_again(hold: Callable[[torch.Tensor], Any], device: str) -> None:
    recorded, held = treeplay.jit(lambda x: x * 2 - 1, lower="aten"), []
    for call in range(CALLS):
        x = torch.full((4,), 1.0 + call, device=device)
        held.append((call, hold(recorded(x))))
    for call, found in held:
        value = 2.0 * (1.0 + call) - 1
        if isinstance(found, tuple):
            found[1].sum().backward()
            found = found[0]
        assert_same(found, torch.full_like(found, value))
    assert_recorded(recorded)


@pytest.mark.parametrize("hold", [HOLDS[0], HOLDS[1], HOLDS[3], by_dlpack], ids=["object", "view", "storage", "dlpack"])
def test_T20_a_gradient_that_is_held_is_not_written_again(hold: Callable[[torch.Tensor], Any], device: str) -> None:
    weight = torch.ones(4, device=device, requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        loss = (weight * x * 2).sum()
        loss.backward()
        return loss.detach()

    recorded, held = treeplay.jit(step, lower="aten"), []
    for call in range(CALLS):
        recorded(torch.full((4,), 1.0 + call, device=device))
        assert weight.grad is not None
        held.append((call, hold(weight.grad)))
    for call, found in held:
        assert_same(found, torch.full_like(found, 2.0 * (1.0 + call)))
    assert_recorded(recorded)


@pytest.mark.gpu
def test_T20_a_result_that_another_stream_still_reads_is_not_written_again() -> None:
    recorded, stream, sums = treeplay.jit(lambda x: x * 2 - 1, lower="aten"), torch.cuda.Stream(), []
    for call in range(20):
        y = recorded(torch.full((1 << 20,), 1.0 + call, device="cuda"))
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)
            sums.append(y[:8].sum())
        y.record_stream(stream)
        del y
    torch.cuda.synchronize()
    assert [found.item() for found in sums] == [8.0 * (2.0 * (1.0 + call) - 1) for call in range(20)]
    assert_recorded(recorded)


def test_two_views_that_are_alike_are_two_tensors_and_one_returned_twice_is_one() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2 - 1
        part = y[0]
        return part, y[0], part, x[1], x[1]

    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    for _ in range(4):
        x = torch.randn(3, 2)
        one, other, again, first, second = jitted(x)
        assert one is again and one is not other and first is not second
        other.unsqueeze_(0)
        assert one.shape == (2,) and torch.equal(one, x[0] * 2 - 1) and one.data_ptr() == other.data_ptr()
