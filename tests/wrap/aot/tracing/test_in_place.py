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


def folded() -> list[Any]:
    return [numbers(12).as_strided((3, 4), (1, 2))]


def whole_and_folded() -> list[Any]:
    base = numbers(12)
    return [base[2:9], base.as_strided((3, 4), (1, 2))]


def twice(x: torch.Tensor) -> list[torch.Tensor]:
    x.mul_(2)
    x.add_(1)
    return [x.sum()]


def one_row_from_another(x: torch.Tensor) -> list[torch.Tensor]:
    x[0] = x[1] * 2 + 1
    return [x - 1]


def in_a_list(x: torch.Tensor) -> list[torch.Tensor]:
    torch._foreach_mul_([x], 3.0)
    return [x - 1]


def beside_one_part(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    y.mul_(2)
    return [x - 1]


def through_windows(x: torch.Tensor) -> list[torch.Tensor]:
    made = x * 1
    made.unfold(0, 3, 1).mul_(2)
    return [made - 1]


def through_a_slice_of_windows(x: torch.Tensor) -> list[torch.Tensor]:
    x.unfold(0, 3, 1)[1].mul_(2)
    return [x - 1]


def through_one_window(x: torch.Tensor) -> list[torch.Tensor]:
    x.as_strided((3, 4), (1, 2))[1].mul_(2)
    return [x - 1]


def through_a_view_that_is_given_by_name(x: torch.Tensor) -> list[torch.Tensor]:
    torch.transpose(input=x.as_strided((3, 2), (1, 1)), dim0=0, dim1=1).mul_(2)
    return [x - 1]


def through_a_view_that_is_given_in_a_list(x: torch.Tensor) -> list[torch.Tensor]:
    torch.atleast_3d([x.as_strided((3, 2), (1, 1))])[0].mul_(2)
    return [x - 1]


def by_name(x: torch.Tensor) -> list[torch.Tensor]:
    torch._foreach_mul_(self=[x], scalar=3.0)
    return [x - 1]


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (through_a_view_that_is_given_by_name, lambda: [numbers(12)]),
        (through_a_view_that_is_given_in_a_list, lambda: [numbers(12)]),
        (by_name, folded),
        (twice, folded),
        (one_row_from_another, folded),
        (in_a_list, folded),
        (beside_one_part, whole_and_folded),
        (through_windows, lambda: [numbers(12)]),
        (through_one_window, lambda: [numbers(12)]),
        (through_a_slice_of_windows, lambda: [numbers(12)]),
    ],
)
def test_Wplus1_a_write_to_what_overlaps_itself_is_refused_and_right(
    function: Callable[..., Any], make: Callable[[], list[Any]]
) -> None:
    with pytest.raises(Refusal, match="own elements share memory") as caught:
        wrapped(function, make)
    assert caught.value.where is not None and caught.value.where.function == function.__name__
    with pytest.warns(UserWarning, match="own elements share memory"):
        call = compile_graph(function, make(), inner="aten")
    expected, found = make(), make()
    assert all(map(torch.equal, call(*found), function(*expected)))
    assert all(map(torch.equal, found, expected))


def written_after_windows(x: torch.Tensor) -> list[torch.Tensor]:
    made, windows = x * 1, x.unfold(0, 4, 2)
    others = made.unfold(0, 3, 1)
    x.add_(1)
    made[2:5].mul_(3)
    return [windows - 1, others.sum(-1), made]


def test_Wplus1_windows_show_what_is_written_beside_them() -> None:
    twin(written_after_windows, lambda: [numbers(12)])


def test_Wplus1_what_overlaps_itself_may_be_read_and_windows_that_do_not_may_be_written() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        x.unfold(0, 3, 3).mul_(2)
        made = x.as_strided((2, 4), (1, 3)) * x.unfold(0, 4, 2).sum()
        made.sub_(1)
        return [made]

    twin(function, lambda: [numbers(12)])


def resized_and_shared(x: torch.Tensor) -> list[torch.Tensor]:
    made, other = torch.empty(0), torch.zeros(3)
    made.resize_(x.shape).copy_(x)
    other.set_(made)
    made.mul_(2)
    return [made, other]


def folded_by_a_storage(x: torch.Tensor) -> list[torch.Tensor]:
    made = torch.empty(2)
    made.set_((x * 1).as_strided((3, 4), (1, 2)))
    made.mul_(2)
    return [made - 1]


@pytest.mark.parametrize("function", [resized_and_shared, folded_by_a_storage])
def test_W3_a_storage_that_is_given_to_a_tensor_is_refused_and_right(function: Callable[..., Any]) -> None:
    with pytest.raises(Refusal, match="the storage of another") as caught:
        wrapped(function, lambda: [numbers(12)])
    assert caught.value.where is not None and ".set_(" in str(caught.value)
    with pytest.warns(UserWarning, match="the storage of another"):
        call = compile_graph(function, [numbers(12)], inner="aten")
    expected, found = function(numbers(12)), call(numbers(12))
    for results in (expected, found):
        results[0][0] = 7.0  # which the other result shows too, if they share memory
    assert all(map(torch.equal, found, expected))
