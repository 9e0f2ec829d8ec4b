"""Arguments that share memory and are written: one common base stands for them, or the program is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeplay.errors import PatternChanged, Refusal
from treeplay.values.output import SameAsInput
from treeplay.wrap.aot.plan.facts import CommonBase
from wrap.aot.oracle import boxed, numbers, twin, wrapped

Make = Callable[[], list[Any]]


def whole(grad: bool) -> torch.Tensor:
    return numbers(6, grad=True) * 1 if grad else numbers(6)


def of_a_third(grad: bool = False) -> list[Any]:
    x = whole(grad)
    return [x[:4], x[2:]]


def first_is_base(grad: bool = False) -> list[Any]:
    x = whole(grad)
    return [x, x[2:]]


def second_is_base(grad: bool = False) -> list[Any]:
    x = whole(grad)
    return [x[1:5], x]


def none_recorded(grad: bool = False) -> list[Any]:
    x = numbers(6)
    return [x[:4].detach(), x[2:].detach()]


SITUATIONS = {
    "both_of_a_third": (of_a_third, CommonBase.RECORDED),
    "first_is_base": (first_is_base, CommonBase.MEMBER),
    "second_is_base": (second_is_base, CommonBase.MEMBER),
    "none_recorded": (none_recorded, CommonBase.FLAT),
}


def one_written(a: Any, b: Any) -> Any:
    a.mul_(2)
    return [a.sum() + b * 3]


def both_written(a: Any, b: Any) -> Any:
    a.mul_(2)
    b.add_(a.sum())
    a.mul_(1.5)
    return [a.sum() + b * 3, b, a.view(-1)]


def views_returned(a: Any, b: Any) -> Any:
    b.mul_(2)
    return [a.view(-1), b[1:], b, a * 2, a]


def hidden(a: Any, b: Any) -> Any:
    b.detach().mul_(2)
    return [a.sum() * b]


def without_grad(a: Any, b: Any) -> Any:
    with torch.no_grad():
        b.mul_(2)
    return [a.sum() * b]


@pytest.mark.parametrize("function", [one_written, both_written, views_returned, hidden, without_grad])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_W10_each_kind_of_base_is_right(situation: str, grad: bool, function: Any) -> None:
    make, kind = SITUATIONS[situation]
    plan = twin(function, lambda: make(grad)).plan
    assert [base.whole for base in plan.bases] == [kind]
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_W10_a_write_through_one_is_seen_in_the_history_of_the_other() -> None:
    call = wrapped(lambda x, y: [y.mul_(2) * 1], lambda: first_is_base(True))
    leaf = numbers(6, grad=True)
    x = leaf * 1
    y = x[2:]
    call([x, y])
    assert "Copy" in type(x.grad_fn).__name__
    x.sum().backward()
    assert leaf.grad.tolist() == [1, 1, 2, 2, 2, 2]


def test_W9_disjoint_slices_get_no_base() -> None:
    def both(a: Any, b: Any) -> Any:
        a.mul_(2)
        b.add_(a)
        return [a + b]

    def make() -> list[Any]:
        x = numbers(6)
        return [x[:3], x[3:]]

    assert twin(both, make).plan.bases == ()


def test_W9_interleaved_columns_get_no_base() -> None:
    def make() -> list[Any]:
        x = numbers(3, 4)
        return [x[:, ::2], x[:, 1::2]]

    assert twin(lambda a, b: (a.mul_(2), [a + b])[1], make).plan.bases == ()


def test_W9_without_a_write_there_is_no_base_and_no_check() -> None:
    call = twin(lambda a, b: [a.sum() + b], of_a_third)
    assert call.plan.bases == () and call.plan.apart is None and "shares" not in call.source


def test_W9_a_base_is_made_once_with_other_arguments_in_between() -> None:
    def make() -> list[Any]:
        x = numbers(6)
        return [x[:4], 3, numbers(4) + 1, x[2:]]

    call = twin(lambda a, n, w, b: (b.mul_(n), [a * w])[1], make)
    assert len(call.plan.bases) == 1 and call.plan.inputs == (4, 1, 2)


def test_W9_all_of_one_storage_join_a_base() -> None:
    def make() -> list[Any]:
        x = numbers(8)
        return [x[:3], x[2:5], x[5:]]

    call = twin(lambda a, b, c: (a.mul_(2), c.add_(b.sum()), [a.sum() + b.sum() * c])[2], make)
    assert [member.argument for member in call.plan.bases[0].members] == [0, 1, 2]


def test_W3_a_copy_is_dropped_before_its_first_joins_a_base() -> None:
    def make() -> list[Any]:
        x = numbers(6)
        a = x[:4]
        return [a, x[2:], a]

    call = twin(lambda a, b, c: (c.mul_(2), [a.sum() + b, c])[1], make)
    assert call.plan.copies == ((2, 0),) and len(call.plan.bases) == 1
    assert call.source.index("check_copy") < call.source.index("common_base") < call.source.index("run(")


def refused(function: Any, make: Make) -> str:
    with pytest.raises(Refusal) as caught:
        wrapped(function, make)
    text = str(caught.value)
    assert "`a`" in text and "`b`" in text and "test_bases.py" in text and "fix: " in text
    return text


def two_recorded_bases() -> list[Any]:
    x = whole(True)
    other = x.detach().requires_grad_() * 1
    with torch.no_grad():
        other.set_(x.detach())  # type: ignore[call-overload]
    return [x[:4], other[2:]]


def test_W11_views_that_autograd_does_not_connect_are_refused_with_both_names() -> None:
    def make() -> list[Any]:
        x = whole(True)
        return [x[:4], x.detach().requires_grad_()]

    assert "views of one tensor" in refused(one_written, make)
    assert "views of one tensor" in refused(one_written, two_recorded_bases)


def test_W11_other_dtypes_are_refused_where_gradients_are_needed() -> None:
    def make() -> list[Any]:
        x = whole(True)
        return [x, x.detach().view(torch.int32)]

    assert "dtype" in refused(one_written, make)


def test_W11_a_conjugate_view_is_refused() -> None:
    def make() -> list[Any]:
        x = torch.complex(numbers(4), numbers(4))
        return [x, x.conj()]

    assert "conjugate" in refused(one_written, make)


def test_W11_a_seen_and_an_unseen_write_to_one_memory_are_refused() -> None:
    def make() -> list[Any]:
        x = whole(True)
        return [x, x.detach()]

    assert "only for one of them" in refused(lambda a, b: (a.mul_(2), b.add_(1), [a + b])[2], make)


def test_W11_a_write_that_starts_a_history_is_refused_without_a_recorded_base() -> None:
    def make() -> list[Any]:
        return [*none_recorded(), numbers(4, grad=True)]

    assert "history" in refused(lambda a, b, w: (a.mul_(w), [b + 1])[1], make)


@pytest.mark.parametrize("function", [one_written, hidden, without_grad, views_returned])
def test_Wplus7_a_tensor_and_its_detached_self_share_a_base(function: Any) -> None:
    def make() -> list[Any]:
        x = whole(True)
        return [x, x.detach()]

    if function is views_returned:
        assert [base.whole for base in wrapped(function, make).plan.bases] == [CommonBase.MEMBER]
    twin(function, make)


@pytest.mark.parametrize("function", [one_written, both_written, views_returned])
def test_Wplus7_members_of_several_bases_or_none_are_right_without_gradients(function: Any) -> None:
    def make() -> list[Any]:
        x = numbers(6)
        return [x[:4], x.detach()[2:]]

    def some() -> list[Any]:
        x = numbers(6)
        return [x[:4], x.detach()]

    assert wrapped(function, make).plan.bases[0].whole is CommonBase.FLAT
    twin(function, make)
    twin(function, some)


def test_Wplus7_members_of_other_dtypes_lie_in_a_base_of_bytes() -> None:
    def make() -> list[Any]:
        x = numbers(6, 2)
        return [x[2:, 1], x.view(torch.int16)[1:4]]

    def function(a: Any, b: Any) -> Any:
        b.add_(3)
        a.mul_(2)
        return [a.sum() + b, b[1:]]

    call = twin(function, make)
    assert call.plan.bases[0].dtype is torch.uint8


def test_Wplus6_a_returned_member_stays_that_object() -> None:
    call = twin(lambda a, b: (a.mul_(2), [a, b])[1], of_a_third)
    a, b = of_a_third()
    r = call([a, b])
    assert r[0] is a and r[1] is b
    assert call.plan.results == (SameAsInput(0), SameAsInput(1))


def squares() -> list[Any]:
    x = numbers(2, 3)
    return [x[:], x[:]]


def test_W12_a_shape_changed_on_a_member_is_applied_at_the_end() -> None:
    def function(a: Any, b: Any) -> Any:
        a.mul_(2)
        b.t_()
        return [a + b.t()]

    call = twin(function, squares)
    a, b = squares()
    (result,) = call([a, b])
    assert b.stride() == (1, 3) and b.shape == (3, 2)
    assert torch.equal(a, numbers(2, 3) * 2) and torch.equal(result, numbers(2, 3) * 4)


def test_W12_writes_shapes_and_returned_views_together() -> None:
    def function(a: Any, b: Any, c: Any) -> Any:
        a.mul_(2)
        b.t_()
        c.add_(a)
        b.mul_(1.5)
        return [a.view(-1), b, c.sum() + b.t() * a, b[1:]]

    def make() -> list[Any]:
        x = numbers(2, 3)
        return [x[:], x[:], numbers(2, 3)]

    def with_base() -> list[Any]:
        x = numbers(2, 3)
        return [x[:], x, numbers(2, 3)]

    twin(function, make)
    twin(function, with_base)


@pytest.mark.parametrize("is_view", [False, True])
def test_W12_a_shape_changed_on_a_member_that_needs_a_gradient(is_view: bool) -> None:
    def make() -> list[Any]:
        x = numbers(2, 3, grad=True) * 1
        return [x[:], x[:] if is_view else x]

    twin(lambda a, b: (a.mul_(2), b.t_(), [a + b.t(), b, b[1:]])[2], make)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_Wplus1_a_call_without_the_base_does_not_fit(situation: str) -> None:
    call = wrapped(one_written, SITUATIONS[situation][0])
    for other in (*(make for make, _ in SITUATIONS.values()), lambda: [numbers(4), numbers(4)]):
        args, expected = other(), other()
        shapes = [a.shape for a in args] == [a.shape for a in SITUATIONS[situation][0]()]
        if other is SITUATIONS[situation][0]:
            continue
        if situation == "none_recorded" and shapes and args[0]._base is not None:
            continue  # a flat base serves views too: they lie the same way
        with pytest.raises(PatternChanged, match=r"argument 0 \(`a`\), argument 1 \(`b`\)"):
            call(list(args))
        assert all(torch.equal(*pair) for pair in zip(args, expected, strict=True)), "something was written"


def test_Wplus1_many_arguments_are_tested_by_address() -> None:
    def function(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        a.mul_(2)
        b.add_(a)
        return [a + b * c - d * e]

    def make() -> list[Any]:
        return [numbers(3) + k for k in range(5)]

    call = twin(function, make)
    assert "check_all_apart(args)" in call.source and "shares_storage" not in call.source
    x = numbers(8)
    for shared in ([x[:3], x[2:5], *make()[2:]], [x[:3], *make()[1:4], x[1:4]]):
        before = [item.clone() for item in shared]
        with pytest.raises(PatternChanged, match=r"argument 0 \(`a`\) and argument \d"):
            call(list(shared))
        assert all(torch.equal(*pair) for pair in zip(shared, before, strict=True))
    y = numbers(8)
    (result,) = call([x[:3], x[3:6], y[:3], y[:3], y[1:4]])
    assert result.shape == (3,)
    foreign = torch.frombuffer(bytearray(bytes(64)), dtype=torch.float32)
    assert call([*make()[:2], foreign[:3], foreign[:3], foreign[:3]])[0].shape == (3,)


def test_W5_arguments_of_a_base_reach_the_graph_as_one() -> None:
    seen: list[int] = []

    def compiler(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)
        return lambda args: (seen.append(len(args)), run(args))[1]

    call = wrapped(one_written, of_a_third, inference=compiler)
    args = of_a_third()
    call(args)
    assert seen == [1] and args == []


def test_W11_a_detached_member_that_a_write_gives_a_history_is_refused() -> None:
    def make() -> list[Any]:
        x = whole(True)
        return [x, x.detach()]

    assert "history" in refused(lambda a, b: (b.mul_(a.sum()), [a * 1])[1], make)


def test_W10_members_that_do_not_start_at_their_storage_are_right_in_training() -> None:
    def make() -> list[Any]:
        x = numbers(8)[2:]
        return [x[:4].detach(), x[2:].detach(), numbers(4, grad=True)]

    twin(lambda a, b, w: (a.mul_(2), b.add_(a.sum()), [a.sum() + b * w])[2], make)


def test_W11_a_base_with_gaps_is_refused_where_gradients_are_needed() -> None:
    def make() -> list[Any]:
        x = numbers(8)[2:].detach().requires_grad_()
        return [x[:4], x[2:]]

    def function(a: Any, b: Any) -> Any:
        with torch.no_grad():
            a.mul_(2)
        return [a + b]

    assert "gaps" in refused(function, make)


@pytest.mark.parametrize("grad", [False, True])
def test_W9_a_changed_shape_alone_needs_no_base(grad: bool) -> None:
    def make() -> list[Any]:
        x = numbers(3, 3)
        return [x[:2], x[1:], numbers(3, grad=grad)]

    call = twin(lambda a, b, w: (a.t_(), [a.sum() + b * w, b[1:]])[1], make)
    assert call.plan.bases == () and "shares_storage" not in call.source
    x = numbers(2, 3)
    with pytest.raises(PatternChanged, match="one tensor"):
        call([x, x, numbers(3, grad=grad)])
    assert x.shape == (2, 3)
