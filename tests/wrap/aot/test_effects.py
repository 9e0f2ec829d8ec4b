"""Operators with side effects take effect once in a call, in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from wrap.aot.effects import LOG, logged, twice
from wrap.aot.oracle import min_cut, numbers, twin, wrapped
from wrap.aot.pairs import pair


@pytest.fixture(autouse=True)
def is_effectful() -> Iterator[None]:
    handle = _register_effectful_op(torch.ops.treeplay_tests.logged.default, _EffectType.ORDERED)
    LOG.clear()
    yield
    if handle is not None:
        handle.destroy()


def test_W19_effects_happen_once_per_call_and_in_order() -> None:
    call = wrapped(lambda x: [logged(x, 1.0) + logged(x, 2.0)], lambda: [torch.ones(2)])
    assert call.plan.tokens == 1
    (y,) = call([torch.ones(2)])
    assert LOG == [2.0, 4.0] and torch.equal(y, torch.full((2,), 3.0))
    call([torch.ones(2)])
    assert LOG == [2.0, 4.0, 2.0, 4.0]


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_W19_effects_of_forward_and_backward(partition: str) -> None:
    changes = {"partition": min_cut} if partition == "min_cut" else {}
    call = wrapped(twice, lambda: [numbers(3, grad=True)], **changes)
    assert call.plan.node.tokens == 1
    logs, gradients = [], []
    for run in (twice, lambda x: call([x])):
        LOG.clear()
        x = numbers(3, grad=True)
        run(x)[0].sum().backward()
        logs.append(list(LOG))
        gradients.append(x.grad)
    assert len(logs[0]) == 4 and logs[1][:2] == logs[0][:2] and sorted(logs[0]) == sorted(logs[1])
    assert torch.equal(*gradients)


def test_W19_with_writes_and_views() -> None:
    twin(lambda x: (x.mul_(2), [logged(x, 2.0), x.view(-1)])[1], lambda: [numbers(2, 3)])
    twin(lambda x: (x.mul_(2), [logged(x, 2.0), x * 2])[1], lambda: [numbers(2, 3, grad=True) * 1])


def test_W19_without_effects_there_is_no_line() -> None:
    source = wrapped(lambda x: [x * 2], lambda: [numbers(2)]).source
    assert "args[:0]" not in source and "values[1:]" not in source


def test_W19_in_front_of_what_pairs_are_opened_to() -> None:
    call = wrapped(lambda x, y: [x * 2, logged(y, 2.0)], lambda: [pair(2), numbers(2)])
    x, y = call([pair(2), numbers(2)])
    assert torch.equal(x.b, pair(2).b * 2) and torch.equal(y, numbers(2) * 2) and len(LOG) == 1
