"""Writes that a forward does itself, as on a GPU, where each would cost the host an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from treeplay.errors import Refusal
from treeplay.wrap.aot.calls import node as helpers
from treeplay.wrap.aot.tracing import writes_inside
from wrap.aot.oracle import alike, compilers, min_cut, numbers, twin, wrapped


@pytest.fixture(autouse=True)
def worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes_inside, "is_costly", lambda target: True)


def normed(x: Any, w: Any, mean: Any, variance: Any, count: Any) -> list[Any]:
    count.add_(1)
    return [F.batch_norm(x * w, mean, variance, training=True).exp() - w]


def for_norm() -> list[Any]:
    return [numbers(4, 3), numbers(3, grad=True), alike(0, 3), alike(1, 3), torch.zeros((), dtype=torch.int64)]


@pytest.mark.parametrize("changes", [{}, {"partition": min_cut}, {"plain": compilers}], ids=["cut", "min cut", "twice"])
def test_statistics_and_counts_are_written_by_the_graph(changes: dict[str, Any]) -> None:
    call = twin(normed, for_norm, **changes)
    assert call.plan.writes == () and len(call.plan.node.returned) == 1
    assert call.plan.touched == (4,)  # of statistics, autograd is not told in eager either
    assert ".copy_(" not in call.source


def test_each_call_writes_once_and_moves_the_version_of_the_count() -> None:
    call = wrapped(normed, for_norm)
    ours, eagers = for_norm(), for_norm()
    before = 0
    for _ in range(4):
        call(list(ours))[0].sum().backward()
        normed(*eagers)[0].sum().backward()
        torch.testing.assert_close(ours, eagers)
        assert ours[4]._version > before
        before = ours[4]._version
    torch.testing.assert_close(ours[1].grad, eagers[1].grad)


def test_many_versions_are_moved_in_one_go() -> None:
    def program(w: Any, *counts: Any) -> list[Any]:
        for number, count in enumerate(counts):
            count.mul_(number).add_(w.detach().sum())
        return [w.exp()]

    make = lambda: [numbers(3, grad=True), *(alike(k + 1) for k in range(6))]  # noqa: E731
    call = twin(program, make)
    assert call.plan.writes == () and "note_every_write([" in call.source
    with torch.inference_mode():
        without = alike(1)
    plain = [alike(1), alike(2)]
    helpers.note_every_write([plain[0], without, plain[1]])
    assert [one._version for one in plain] == [1, 1]


def saved(x: Any, w: Any) -> list[Any]:
    """Eager keeps `x.exp()`; the split with the least memory keeps `x`, as it was."""
    y = x.exp() * w
    x.mul_(2)
    return [y.sin()]


def shown(x: Any, w: Any) -> list[Any]:
    x.mul_(2)
    return [x[1:], w.exp()]


def exchanged(x: Any, w: Any) -> list[Any]:
    """Of two arguments each becomes the other, which is no new value."""
    first, second = x[:1], x[1:2]
    before = first.clone()
    first.copy_(second)
    second.copy_(before)
    return [w.exp() * before.sum()]


def tracked(x: Any, w: Any) -> list[Any]:
    """What autograd has to see."""
    x.mul_(w)
    return [w.exp()]


def result_too(x: Any, w: Any) -> list[Any]:
    value = x * 3
    x.copy_(value)
    return [value, w.exp()]


def narrowed(x: Any, w: Any) -> list[Any]:
    x.copy_((x * 2).double() * w.detach().double())
    return [w.exp() * 2]


@pytest.mark.parametrize("program", [saved, shown, exchanged, tracked, result_too, narrowed])
@pytest.mark.parametrize("partition", [None, min_cut])
def test_what_is_seen_otherwise_is_right(program: Callable[..., Any], partition: Any) -> None:
    changes = {"partition": partition} if partition else {}
    call = twin(program, lambda: [numbers(3), numbers(3, grad=True)], **changes)
    if program in (shown, tracked) or (program is saved and partition):
        assert [write.argument for write in call.plan.writes] == [0]


def test_what_the_backward_writes_too_is_left_to_the_call() -> None:
    class Counts(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            ctx.count = count
            count.add_(1)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            ctx.count.mul_(3)
            return grad * 2, None

    try:
        twin(lambda x, count: [Counts.apply(x, count).exp()], lambda: [numbers(3, grad=True), alike(1)])
    except Refusal as refusal:
        pytest.skip(str(refusal))


def test_on_the_cpu_the_call_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    call = wrapped(normed, for_norm)
    assert [write.argument for write in call.plan.writes] == [2, 3, 4]
