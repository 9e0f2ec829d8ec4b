"""Arguments whose shape changes in place, beside writes and gradients: where they and their views lie afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeplay.errors import PatternChanged, Refusal
from treeplay.values.layout import Layout
from wrap.aot.oracle import grown, numbers, twin, wrapped
from wrap.aot.pairs import pair


def shape_first(x: Any) -> Any:
    x.t_()
    x.mul_(2)
    return [x + 1]


def write_first(x: Any) -> Any:
    x.mul_(2)
    x.t_()
    return [x + 1]


def there_and_back(x: Any) -> Any:
    x.t_()
    x[1:].mul_(2)
    x.t_()
    return [x + 1]


def several(x: Any) -> Any:
    x.unsqueeze_(0)
    x.add_(1)
    x.transpose_(0, 2)
    x[:1].mul_(3)
    return [x + 1]


def views(x: Any) -> Any:
    early = x[1:]
    x.t_()
    x.mul_(2)
    return [early, x[1:], early + 1]


def through_an_alias(x: Any) -> Any:
    y = x.detach()
    x.t_()
    y.mul_(2)
    return [x[:1]]


PLACES: dict[str, Callable[[], list[Any]]] = {
    "alone": lambda: [numbers(2, 3)],
    "later in its storage": lambda: [numbers(5, 3)[2:]],
    "with gaps": lambda: [numbers(4, 6)[:, ::2]],
    "transposed, with gaps": lambda: [numbers(4, 6)[1:, ::3].t()],
    "a member's gaps": lambda: (lambda whole: [whole[1:, ::2]])(numbers(5, 6).detach()),
}


@pytest.mark.parametrize("place", list(PLACES))
@pytest.mark.parametrize("function", [shape_first, write_first, there_and_back, several, views, through_an_alias])
def test_W25_a_written_argument_stays_where_it_lies_in_its_storage(function: Any, place: str) -> None:
    twin(function, PLACES[place])


def test_W25_a_call_writes_nothing_beside_the_argument() -> None:
    """The cause of a lost write: the new shape was laid over the start of the storage, which is another argument's."""

    def function(first: Any, second: Any) -> Any:
        second.t_()
        second.mul_(2)
        return [first, second]

    def make() -> list[Any]:
        whole = numbers(4, 2)
        return [whole[:2], whole[2:]]

    call = twin(function, make)
    assert [write.layout for write in call.plan.writes] == [Layout((2, 2), (1, 2), 0)]


def test_W25_an_operator_that_likes_another_layout_does_not_give_it_to_the_argument() -> None:
    def product(x: Any, y: Any) -> Any:
        x.addmm_(y, y)
        x.t_()
        return [x.sum()]

    def product_of_transposed(x: Any, y: Any) -> Any:
        x.t_()
        x.addmm_(y, y)
        return [x.sum()]

    def out(x: Any, y: Any) -> Any:
        torch.add(y, x, out=x)
        x.t_()
        return [x.sum()]

    for function in (product, product_of_transposed, out):
        for make in (lambda: [numbers(2, 2), numbers(2, 2).t() + 5], lambda: [numbers(2, 2).t(), numbers(2, 2) + 5]):
            twin(function, make)


def test_W25_a_gradient_reaches_what_was_computed_before_a_shape_changed_and_changed_back() -> None:
    def function(x: Any, y: Any) -> Any:
        before = x * 5
        x.t_()
        between = x * 7
        x.t_()
        y.mul_(before.sum())
        return [between * 2, x, x[1:], x * 3, x]

    call = twin(function, lambda: [grown(2, 3), numbers(2)])
    assert [write.argument for write in call.plan.writes] == [1]
    twin(function, lambda: [grown(4, 6)[:, ::2], numbers(2)])


def test_W25_a_change_of_shape_that_changes_nothing_keeps_the_gradient() -> None:
    def function(x: Any) -> Any:
        before = x * 5
        x.squeeze_()
        return [before, x * 3]

    twin(function, lambda: [grown(2, 3)])
    twin(function, lambda: [pair(2, 3, grad=True) * 1])


def test_W25_a_leaf_under_no_grad_keeps_the_gradient_too() -> None:
    def function(x: Any) -> Any:
        before = x * 5
        with torch.no_grad():
            x.t_()
            x.t_()
        return [before, x * 3]

    twin(function, lambda: [numbers(2, 3, grad=True)])


def test_W25_one_tensor_in_the_place_of_two_is_told_also_where_the_shape_changes_back() -> None:
    def function(x: Any, y: Any) -> Any:
        x.t_()
        seen = y * 1
        x.t_()
        return [seen]

    for make in (lambda: [numbers(2, 3), numbers(2, 3)], lambda: [grown(2, 3), numbers(2, 3)]):
        call = twin(function, make)
        x = make()[0]
        with pytest.raises(PatternChanged):
            call([x, x])


def test_W25_what_was_written_outside_of_a_new_shape_is_refused_with_the_line() -> None:
    def smaller(x: Any) -> Any:
        x.mul_(3)
        x.resize_(2, 2)
        return [x + 1]

    def elsewhere(x: Any) -> Any:
        x.as_strided_((2, 2), (1, 2), 1)
        x.mul_(3)
        return [x + 1]

    def larger(x: Any) -> Any:
        x.resize_(20)
        x.mul_(3)
        return [x[:1] + 1]

    for function, make in (
        (smaller, lambda: [numbers(4, 6)]),
        (elsewhere, lambda: [numbers(4, 6)]),
        (larger, lambda: [numbers(30)[2:5]]),
    ):
        with pytest.raises(Refusal) as caught:
            wrapped(function, make)
        assert "test_shapes.py" in str(caught.value)
        assert function is larger or "`x` is written, and its shape changes" in str(caught.value)
    twin(lambda x: [x.as_strided_((2, 2), (1, 2), 1) + 1], lambda: [numbers(4, 6)])


def test_W25_operators_by_their_overload_are_seen_with_the_line() -> None:
    aten = torch.ops.aten

    def function(x: Any, y: Any) -> Any:
        aten.t_.default(x)
        aten.mul_.Tensor(x, y)
        return [x + 1]

    twin(function, lambda: [numbers(5, 3)[2:], numbers(3, 3)])
    with pytest.raises(Refusal, match=r"t_: changes a shape(.|\n)*test_shapes.py"):
        wrapped(function, lambda: [numbers(3, 3), grown(3, 3)])


def test_Wplus2_one_tensor_under_two_names_is_transposed_by_each() -> None:
    def function(a: Any, b: Any) -> Any:
        a.t_()
        b.t_()
        return [a + b]

    def further(a: Any, b: Any) -> Any:
        a.t_()
        b.unsqueeze_(0)
        return [a * 2, b]

    call = twin(function, lambda: [numbers(2, 3)] * 2)
    x = numbers(2, 3)
    (result,) = call([x, x])
    assert x.shape == (2, 3) and torch.equal(result, numbers(2, 3) * 2)
    twin(further, lambda: [numbers(2, 3)] * 2)
    x = numbers(2, 3)
    wrapped(further, lambda: [numbers(2, 3)] * 2)([x, x])
    assert x.shape == (1, 3, 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.t_(), [x[0], x * 2])[1],
        lambda x: (x.unsqueeze_(0), [x[0, 1:], x - 1])[1],
        lambda x: (x.t_(), x.mul_(3), [x * 2])[2],
    ],
)
def test_a_shape_changes_in_place_wherever_in_its_memory_an_argument_begins(function: Any) -> None:
    call = wrapped(function, lambda: [numbers(2, 3)])
    x, twin_of_x = (numbers(4, 6).as_strided((2, 3), (3, 1), 6) for _ in range(2))
    for result, expected in zip(call([x]), function(twin_of_x), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
    assert torch.equal(x, twin_of_x)
    assert (x.stride(), x.storage_offset()) == (twin_of_x.stride(), twin_of_x.storage_offset())


def test_what_is_laid_out_anew_from_the_start_of_its_memory_begins_where_it_did() -> None:
    call = wrapped(lambda x: [x.as_strided_((2, 2), (1, 2), 1) + 1], lambda: [numbers(4, 6)])
    with pytest.raises(PatternChanged, match="begins elsewhere"):
        call([numbers(5, 6)[1:]])
