"""Tensors made of others, effect tokens and random states beside common bases, writes in the graph and late writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from treeplay.errors import PatternChanged, Refusal
from treeplay.wrap.aot.calls.lazy_backward import LazyBackward
from treeplay.wrap.aot.plan.subclasses import plain_parts
from wrap.aot.effects import LOG, logged
from wrap.aot.oracle import min_cut, numbers, twin, wrapped
from wrap.aot.pairs import Pair, nested, pair
from wrap.aot.tracing.test_later import Counted, Doubled, Greedy


def slices(grad: bool) -> list[Any]:
    whole = numbers(6, grad=True) * 1 if grad else numbers(6)
    return [whole[:4], pair(4), whole[2:]]


def overlapping(x: Any, p: Any, y: Any) -> list[Any]:
    x.mul_(2)
    y.add_(3)
    return [p * 2 + 1, y * 5, x]


@pytest.mark.parametrize("grad", [False, True])
def test_W16_a_pair_beside_arguments_with_a_common_base(grad: bool) -> None:
    call = twin(overlapping, lambda: slices(grad))
    assert len(call.plan.bases) == 1 and call.plan.opened.arguments[1] is not None


def test_W16_beside_a_pair_arguments_are_written_after_the_graph() -> None:
    function = lambda x, p: (x.mul_(2), [p * x])[1]  # noqa: E731
    call = twin(function, lambda: [numbers(3), pair(3)])
    assert [write.argument for write in call.plan.writes] == [0]
    assert not twin(function, lambda: [numbers(3), numbers(3)]).plan.writes  # the graph's own


def test_W16_a_saved_half_of_a_written_pair_is_a_copy() -> None:
    def function(x: Any, p: Any) -> Any:
        y = x * p.sin().cos()
        p.mul_(2)
        return [y]

    call = twin(function, lambda: [pair(3, grad=True), pair(3)], partition=min_cut)
    assert len(call.plan.node.copied) == 2


def test_W16_halves_of_many_arguments_are_tested_by_address() -> None:
    def function(a: Any, p: Any, b: Any, c: Any, q: Any) -> Any:
        a.mul_(2)
        p.add_(a)
        return [p * b - c * q]

    def make() -> list[Any]:
        return [numbers(3), pair(3), numbers(3), numbers(3), pair(3)]

    call = twin(function, make)
    assert "check_all_apart([" in call.source
    for k, replaced in ((2, lambda p: p.b), (4, lambda p: Pair(numbers(3), p.a)), (0, lambda p: p.a)):
        args = make()
        args[k] = replaced(args[1])
        before = [args[1].a.clone(), args[1].b.clone()]
        with pytest.raises(PatternChanged, match="share memory"):
            call(list(args))
        assert torch.equal(args[1].a, before[0]) and torch.equal(args[1].b, before[1])
    one = numbers(3)
    assert call([numbers(3), pair(3), one, one, Pair(one, one)])[0].shape == (3,)


@pytest.mark.parametrize("partition", ["default", "min_cut"])
@pytest.mark.parametrize("function", [Counted, Doubled])
@pytest.mark.parametrize("kinds", ["a pair", "beside a pair", "a pair of pairs"])
def test_W43_a_buffer_made_of_tensors_is_written_when_the_backward_runs(
    function: Any, kinds: str, partition: str
) -> None:
    def make() -> list[Any]:
        buffer = {"a pair": pair, "beside a pair": numbers, "a pair of pairs": nested}[kinds](3)
        other = pair(3) if kinds == "beside a pair" else numbers(3) * 2
        return [numbers(3, grad=True), buffer, other]

    def program(x: Any, buffer: Any, other: Any) -> Any:
        return [function.apply(x, buffer) * other]

    call = wrapped(program, make, **({"partition": min_cut} if partition == "min_cut" else {}))
    told = []
    for run in (lambda args: program(*args), call):
        x, buffer, other = make()
        results = [run([x, buffer, other])[0] for _ in range(2)]
        states = [plain_parts(buffer * 1)]
        for result in results:
            version = buffer._version
            result.sum().backward()
            assert buffer._version > version
            states.append(plain_parts(buffer * 1))
        told.append([*states, plain_parts(x.grad)])
    torch.testing.assert_close(told[1], told[0])
    assert not torch.equal(told[1][0][0], told[1][1][0])


@pytest.mark.parametrize("make_buffer", [pair, nested])
def test_W43_a_buffer_made_of_tensors_is_written_in_both_directions(make_buffer: Any) -> None:
    def program(x: Any, buffer: Any) -> Any:
        with torch.no_grad():
            buffer.add_(10)
        return [Doubled.apply(x, buffer)]

    def make() -> list[Any]:
        return [numbers(3, grad=True), make_buffer(3)]

    call, told = wrapped(program, make), []
    for run in (lambda args: program(*args), call):
        x, buffer = make()
        states = []
        for _ in range(2):
            (y,) = run([x, buffer])
            states.append(plain_parts(buffer * 1))
            y.sum().backward()
            states.append(plain_parts(buffer * 1))
        told.append([*states, plain_parts(x.grad)])
    torch.testing.assert_close(told[1], told[0])
    assert torch.equal(told[1][1][0], told[1][0][0] * 2)


def test_W43_a_gradient_written_beside_a_pair_is_refused() -> None:
    with pytest.raises(Refusal, match=r"written in the backward, beside tensors made of other tensors"):
        wrapped(lambda x, p: [Greedy.apply(x), p * x], lambda: [numbers(2, grad=True), pair(2)])


@pytest.fixture
def effects() -> Iterator[None]:
    handle = _register_effectful_op(torch.ops.treeplay_tests.logged.default, _EffectType.ORDERED)
    LOG.clear()
    yield
    if handle is not None:
        handle.destroy()


@pytest.mark.usefixtures("effects")
@pytest.mark.parametrize("grad", [False, True])
def test_W19_effects_beside_a_common_base(grad: bool) -> None:
    def function(x: Any, y: Any) -> Any:
        x.mul_(2)
        return [logged(y, 2.0) + 1, x]

    def make() -> list[Any]:
        whole = numbers(6, grad=True) * 1 if grad else numbers(6)
        return [whole[:4], whole[2:]]

    call = twin(function, make)
    assert call.plan.tokens == 1 and len(call.plan.bases) == 1
    assert LOG[0] == LOG[1] and len(LOG) == (8 if grad else 4)  # eager and ours, twice, in both directions


@pytest.mark.usefixtures("effects")
def test_W43_late_writes_beside_effects_are_refused() -> None:
    with pytest.raises(Refusal, match="written in the backward, beside operators with side effects"):
        wrapped(lambda x, b: [logged(Counted.apply(x, b), 2.0)], lambda: [numbers(2, grad=True), numbers(2)])


def test_W39_a_backward_takes_what_is_no_tensor() -> None:
    given: list[Any] = []

    def compile_backward(missing: Any, values: Any) -> Any:
        return (lambda args: given.append([*args]) or [args[0] * 3]), (0, 1, 2)

    lazy, generator = LazyBackward(compile_backward, 0), torch.Generator()
    first, turned = numbers(2, 3), numbers(3, 2).t()
    assert torch.equal(lazy([first, None, generator])[0], first * 3)
    assert torch.equal(lazy([turned, None, generator])[0], turned * 3)
    assert [values[0].stride() for values in given] == [(3, 1), (3, 1)]  # laid out as when it was compiled
    assert all(values[1] is None and values[2] is generator for values in given)
