"""Writes as eager does them: strides stay, an expanded view is no sum, and what eager refuses to write is not written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeplay.errors import Refusal
from treeplay.torch_compile import compile_graph
from wrap.aot.oracle import numbers, twin, wrapped

FIRST = torch.tensor([0])


def turned() -> list[Any]:
    return [numbers(3, 4).t()]


@pytest.mark.parametrize(
    "write",
    [
        lambda q: q.masked_fill_(q > 0, 1.5),
        lambda q: q.index_copy_(0, torch.tensor([0]), q[1:2].clone()),
        lambda q: q.index_put_((torch.tensor([0]),), q[1].clone()),
        lambda q: torch._foreach_mul_([q], 2.0),
    ],
)
def test_W3_what_is_computed_of_a_written_tensor_lies_as_in_eager(write: Callable[..., Any]) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        made = x - 1
        write(made)
        write(x)
        return [x**2, made.unsqueeze(0).squeeze(0)]

    (x,), call = turned(), wrapped(function, turned)
    for found, expected in zip(call([x]), function(*turned()), strict=True):
        assert torch.equal(found, expected) and found.stride() == expected.stride()


def test_W3_a_write_through_an_expand_of_nothing_is_exact() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        x.expand(x.shape).copy_(y)
        torch.broadcast_to(x, (1, 2)).neg_()
        return [1 / x]

    twin(function, lambda: [torch.tensor([float("inf"), 1e8]), torch.tensor([0.0, 1e-8])])


def through_an_expand(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
    x.expand(2, 2)[0].copy_(y)
    return (x * 2,)


def test_W3_a_write_through_an_enlarging_expand_is_refused_and_right() -> None:
    def make() -> list[Any]:
        return [torch.tensor([float("inf"), 1e8]), torch.tensor([0.0, 1e-8])]

    with pytest.raises(Refusal, match="expanded view") as caught:
        wrapped(through_an_expand, make)
    assert caught.value.where is not None and caught.value.where.line == through_an_expand.__code__.co_firstlineno + 1
    with pytest.warns(UserWarning, match="expanded view"):
        call = compile_graph(through_an_expand, make(), inner="aten")
    assert torch.equal(call(*make())[0], through_an_expand(*make())[0])


def whole() -> torch.Tensor:
    return torch.arange(1, 4)


@pytest.mark.parametrize(
    ("write", "made"),
    [
        (lambda x, y: x.mul_(y), lambda: [whole(), 0.5]),
        (lambda x, y: x.__imul__(y), lambda: [whole(), 0.5]),
        (lambda x, y: torch._foreach_mul_([x * 1, x], y), lambda: [whole(), 0.5]),
        (lambda x, y: torch._foreach_addcmul_([x], [y], [y], value=2), lambda: [numbers(3), numbers(3) + 1j]),
        (lambda x, y: x.index_add_(0, FIRST, y), lambda: [numbers(3), numbers(1).double()]),
        (lambda x, y: x.index_add_(0, FIRST, y), lambda: [numbers(4, 3), numbers(1, 3, 2)]),
        (lambda x, y: x.index_copy_(0, FIRST, y), lambda: [numbers(3), numbers(1).double()]),
        (lambda x, y: x.index_put_((FIRST,), y), lambda: [numbers(3), numbers(2)]),
        (lambda x, y: x.index_put_((FIRST,), y), lambda: [numbers(3), numbers(1).double()]),
        (lambda x, y: x.copy_(x.t()), lambda: [numbers(3, 3), 0]),
        (lambda x, y: x[1:].sub_(x[:-1]), lambda: [numbers(4), 0]),
        (lambda x, y: x.__setitem__(slice(1, None), x[:-1]), lambda: [numbers(4), 0]),
        (lambda x, y: torch.mul(x.t(), 2, out=x), lambda: [numbers(3, 3), 0]),
    ],
)
def test_W3_what_eager_does_not_write_is_refused(write: Callable[..., Any], made: Callable[[], list[Any]]) -> None:
    with pytest.raises(RuntimeError) as eager:
        write(*made())
    assert not isinstance(eager.value, Refusal)
    with pytest.raises(Refusal, match="fails when it runs"):
        wrapped(lambda x, y: (write(x, y), [x + 1])[1], made)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.copy_(x.view(3)),
        lambda x: x[:1].sub_(2 * x[1:2]),
        lambda x: x[::2].sub_(x[:2]),  # it has gaps, and the last element is read before it is written or behind it
        lambda x: x.__setitem__(slice(0, 2), x[:2]),
        lambda x: torch.mul(x, 2, out=x),
    ],
)
def test_W3_memory_that_is_shared_as_eager_allows_is_written(write: Callable[..., Any]) -> None:
    twin(lambda x: (write(x), [x - 1])[1], lambda: [numbers(3)])


@pytest.mark.parametrize(
    "write",
    [lambda x: x.mul_(2), lambda x: x.gt_(2), lambda x: x.copy_(x * 0.5), lambda x: torch._foreach_pow_([x], 2)],
)
def test_W3_whole_numbers_are_written_as_eager_writes_them(write: Callable[..., Any]) -> None:
    twin(lambda x: (write(x), [x - 1])[1], lambda: [whole()])
