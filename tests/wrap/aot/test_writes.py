"""Writes to arguments: versions, histories, flags, order; and what is refused, with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeplay.errors import Refusal, UsageError
from wrap.aot.oracle import alike, device, grown, numbers, twin, wrapped


def test_W22_the_version_moves_where_eagers_moves() -> None:
    base = numbers(4, 3)
    view, other = base[1:3], base[:1]
    wrapped(lambda x: (x.mul_(2), [x + 1])[1], lambda: [numbers(4, 3)[1:3]])([view])
    assert base._version == view._version == other._version > 0
    x = numbers(4, 3)
    wrapped(lambda x: (x.detach().mul_(2), [x + 1])[1], lambda: [numbers(4, 3)])([x])
    assert x._version > 0
    y = numbers(4, 3)
    wrapped(lambda x, y: (x.mul_(2), [x + y])[1], lambda: [numbers(4, 3), numbers(4, 3)])([x, y])
    assert y._version == 0


def test_W22_statistics_that_are_saved_are_not_taken_for_outdated() -> None:
    bn = torch.nn.functional.batch_norm

    def function(x: Any, w: Any, mean: Any, var: Any) -> Any:
        first = bn(x * w, mean, var, training=True)
        return [bn(first, mean, var, training=True) * var]

    twin(
        function, lambda: [numbers(4, 3, grad=True), numbers(3, grad=True), numbers(3), numbers(3) + 2], backward=False
    )


def test_W23_a_strided_view_is_written_at_its_places() -> None:
    base = numbers(4, 6)
    wrapped(lambda x: (x.mul_(2), [x.sum()])[1], lambda: [numbers(4, 6)[:, ::2]])([base[:, ::2]])
    assert torch.equal(base[:, ::2], numbers(4, 6)[:, ::2] * 2) and torch.equal(base[:, 1::2], numbers(4, 6)[:, 1::2])


def test_W23_an_expanded_argument_cannot_be_written() -> None:
    def function(x: Any) -> Any:
        x.mul_(2)
        return [x + 1]

    with pytest.raises(RuntimeError):
        function(numbers(3).expand(4, 3))
    with pytest.raises(RuntimeError):
        wrapped(function, lambda: [numbers(3).expand(4, 3)])([numbers(3).expand(4, 3)])


def test_W24_three_kinds_of_write_each_in_its_way() -> None:
    def function(x: Any, y: Any, z: Any) -> Any:
        x.detach().mul_(4)
        with torch.no_grad():
            y.mul_(3)
        z.mul_(2)
        return [x + 2, y * x, z * y]

    call = twin(function, lambda: [numbers(3, grad=True), numbers(3, grad=True), grown(3)])
    assert [write.is_tracked for write in call.plan.writes] == [False, False, True]
    x, y, z = numbers(3, grad=True), numbers(3, grad=True), grown(3)
    call([x, y, z])
    assert x.is_leaf and y.is_leaf and x.grad_fn is None and "Copy" in type(z.grad_fn).__name__
    assert torch.equal(x, numbers(3) * 4)


def test_W3_writes_come_before_views_and_views_before_the_grad_mode() -> None:
    def function(a: Any, b: Any, x: Any) -> Any:
        a.mul_(2)
        x.t_()
        result = [x.view(3, 2, 1), a[1:], b * 2]
        torch._C._set_grad_enabled(False)
        return result

    try:
        call = wrapped(function, lambda: [numbers(4)] * 2 + [numbers(2, 3)])
    finally:
        torch._C._set_grad_enabled(True)
    steps = ["check_copy(", "del args", "check_apart(", "note_write(", "set_grad_enabled(False)", "run(args)"]
    steps += ["set_grad_enabled(True)", "wrong_count", ".copy_(", "lay_out(", "set_grad_enabled(False)", "return ["]
    at = -1
    for step in steps:
        at = call.source.find(step, at + 1)
        assert at >= 0, f"{step} is not in order in\n{call.source}"
    assert "apply_views" in call.source.splitlines()[-1] or "as_strided" in call.source.splitlines()[-1]


def replaced(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.set_(y)
    return [x + 1]


def replaced_after_a_write(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.mul_(2)
        x.set_(y)
    return [x + 1]


def replaced_and_written(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.set_(y)
        x.mul_(2)
    return [x + 1]


def resized(x: Any, y: Any) -> Any:
    x.resize_(20)
    return [y + 1]


def refilled(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.untyped_storage().resize_(0)
    return [y + 1]


@pytest.mark.parametrize("function", [replaced, replaced_after_a_write, replaced_and_written, resized, refilled])
def test_W27_a_storage_that_is_replaced_or_resized_is_refused_with_the_line(function: Callable[..., Any]) -> None:
    with pytest.raises(Refusal) as caught:
        wrapped(function, lambda: [numbers(6), numbers(6)])
    text = str(caught.value)
    assert "test_writes.py" in text and "fix: " in text


def left_on(x: Any, y: Any) -> Any:
    torch.set_autocast_enabled(device(), True)
    return [x @ y]


def test_W27_an_autocast_state_that_is_left_changed_is_refused() -> None:
    try:
        with pytest.raises(Refusal, match="autocast"):
            wrapped(left_on, lambda: [numbers(2, 2), numbers(2, 2)])
        assert not torch.is_autocast_enabled(device())
    finally:
        torch.set_autocast_enabled(device(), False)


def test_Wplus13_refusals_name_argument_line_and_cure() -> None:
    def grows(batch: Any) -> Any:
        batch.t_()
        batch.mul_(2)
        return [batch + 1]

    for function, make, named in (
        (replaced, lambda: [numbers(6), numbers(6)], "`x`"),
        (grows, lambda: [grown(2, 3)], "t_"),
        (lambda x: [x.requires_grad_() * 2], lambda: [numbers(2)], "requires_grad_"),
        (lambda x: [x.mul_(2)], lambda: [numbers(2, grad=True)], "mul_"),
    ):
        with pytest.raises(Refusal) as caught:
            wrapped(function, make)
        text = str(caught.value)
        assert named in text and "test_writes.py" in text and "fix: " in text
        assert "guard bug" not in text and "file an" not in text


def test_Wplus13_calls_that_do_not_fit_name_both_arguments_and_the_cure() -> None:
    call = wrapped(lambda left, right: (left.mul_(2), [left + right])[1], lambda: [numbers(2), numbers(2)])
    x = numbers(3)
    with pytest.raises(UsageError) as caught:
        call([x[:2], x[1:]])
    assert all(part in str(caught.value) for part in ("`left`", "`right`", "Fix: "))


def test_W46_a_flag_that_changed_is_told_before_anything_runs() -> None:
    ran: list[int] = []

    def compiler(module: Any, inputs: Any) -> Any:
        return lambda args: (ran.append(1), args.clear(), (numbers(2),))[2]

    call = wrapped(lambda x, y: [x * y], lambda: [numbers(2), numbers(2)], checked=True, inference=compiler)
    with pytest.raises(UsageError) as caught:
        call([numbers(2, grad=True), numbers(2)])
    text = str(caught.value)
    assert "`x`" in text and "needs a gradient" in text and "Fix: " in text and not ran
    with pytest.raises(UsageError, match=r"`y`.*a tensor.*int"):
        call([numbers(2), 3])
    with torch.no_grad():
        call([numbers(2, grad=True), numbers(2)])
    call([numbers(2), numbers(2)])
    assert ran == [1, 1]
    plain = wrapped(lambda x, y: [x * y], lambda: [numbers(2), numbers(2)])
    assert "check_arguments" not in plain.source and "check_arguments" in call.source


def test_W46_data_is_not_to_be_had_in_a_trace() -> None:
    class Peeking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * gradient.data_ptr()

    with pytest.raises(Refusal, match="data"):
        wrapped(lambda x: [x * x.data_ptr()], lambda: [numbers(2)])
    with pytest.raises(Refusal, match="data"):
        wrapped(lambda x: [Peeking.apply(x)], lambda: [numbers(2, grad=True)])


def test_W46_a_captured_fake_tensor_is_refused() -> None:
    fake = torch._subclasses.FakeTensorMode().from_tensor(numbers(2))
    with pytest.raises(Refusal, match=r"[Ff]ake"):
        wrapped(lambda x: [x + fake], lambda: [numbers(2)])


def sets_data(x: Any, y: Any) -> Any:
    x.data = y
    return [x * 2]


def new_leaf(x: Any, y: Any) -> Any:
    w = torch.ones(3, requires_grad=True, device=x.device)
    return [w, x * 2]


def view_under_no_grad(x: Any, y: Any) -> Any:
    with torch.no_grad():
        view = x.view(-1)
    return [view, x * 2]


def made_a_leaf(x: Any, y: Any) -> Any:
    return [(x * 2).detach().requires_grad_()]


def flag_set(x: Any, y: Any) -> Any:
    y.requires_grad = True
    return [x * y]


def detached_in_place(x: Any, y: Any) -> Any:
    return [(x * 1).detach_() * y]


def detached_argument(x: Any, y: Any) -> Any:
    return [y * 1, x.detach_()]


@pytest.mark.parametrize(
    "function", [sets_data, new_leaf, view_under_no_grad, made_a_leaf, flag_set, detached_argument, left_on]
)
def test_Wplus3_changes_of_flags_and_modes_are_refused_with_the_line(function: Callable[..., Any]) -> None:
    with pytest.raises(Refusal) as caught:
        wrapped(function, lambda: [numbers(3, grad=True), numbers(3)])
    text = str(caught.value)
    assert "fix: " in text and ("test_writes.py" in text or function is left_on)


def test_Wplus3_a_tensor_made_inside_is_detached_in_place() -> None:
    call = twin(detached_in_place, lambda: [numbers(3, grad=True), numbers(3)])
    assert call.plan.node is None or call.plan.node.feeds == (None, None)


@pytest.mark.parametrize("make", [lambda: [numbers(3)], lambda: [numbers(3, grad=True)], lambda: [grown(3)]])
def test_Wplus3_a_write_through_data_does_not_move_the_version(make: Any) -> None:
    def function(x: Any) -> Any:
        x.data.mul_(2)
        x.data[1:].add_(1)
        return [x * 3]

    def mixed(x: Any) -> Any:
        x.data.mul_(2)
        x.detach().add_(1)
        return [x * 3]

    call = twin(function, make)
    (x,) = make()
    call([x])
    assert x._version == 0
    call = twin(mixed, make)
    (x,) = make()
    call([x])
    assert x._version > 0


@pytest.mark.parametrize("grad", [False, True])
def test_W28_a_grad_mode_left_changed_stands_and_the_trace_leaves_none(grad: bool) -> None:
    def function(x: Any) -> Any:
        y = x * 2
        torch._C._set_grad_enabled(False)
        return [y]

    try:
        call = wrapped(function, lambda: [numbers(2, grad=grad)])
        assert torch.is_grad_enabled() and call.plan.grad_mode_after is False
        call([numbers(2, grad=grad)])
        assert not torch.is_grad_enabled()
    finally:
        torch._C._set_grad_enabled(True)


class Tripled(torch.autograd.Function):
    """Changes its first argument in place, and has another slope than that."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(3), w * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, other: torch.Tensor) -> Any:
        return gradient * 5, gradient * 7 + other


@pytest.mark.parametrize("has_history", [True, False], ids=["history", "no history"])
def test_what_a_custom_function_marks_as_changed_gets_its_history(has_history: bool) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        changed, doubled = Tripled.apply(x, w)
        return [changed * w, doubled + 1]

    def make() -> list[torch.Tensor]:
        return [alike(1, 3, grad=True) * 2 if has_history else alike(1, 3), numbers(3, grad=True)]

    call = wrapped(function, make)
    gradients = []
    for run in (function, lambda x, w: call([x, w])):
        x, w = make()
        leaves = [w, *(node.variable for node, _ in x.grad_fn.next_functions if node)] if has_history else [w]
        total = sum((result * k).sum() for k, result in enumerate(run(x, w), start=1)) + (x * 11).sum()
        gradients.append([x.detach(), *torch.autograd.grad(total, leaves)])
        assert x.requires_grad
    for ours, eagers in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("has_history", [True, False], ids=["history", "no history"])
def test_what_a_custom_function_changed_and_returns_is_the_argument_itself(has_history: bool) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        changed, doubled = Tripled.apply(x, w)
        changed, _ = Tripled.apply(changed, doubled)
        return [doubled, changed, w.sin()]

    def make() -> list[torch.Tensor]:
        return [alike(1, 3, grad=True) * 2 if has_history else alike(1, 3), numbers(3, grad=True)]

    call = wrapped(function, make)
    gradients = []
    for run in (function, lambda x, w: call([x, w])):
        x, w = make()
        leaves = [w, *(node.variable for node, _ in x.grad_fn.next_functions if node)] if has_history else [w]
        version = x._version
        results = run(x, w)
        assert results[1] is x and x.grad_fn is not None and not x.is_leaf and x._version > version
        total = sum((result * k).sum() for k, result in enumerate(results, start=1)) + (x * 11).sum()
        gradients.append([x.detach(), *torch.autograd.grad(total, leaves)])
    for ours, eagers in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, eagers)


def test_a_result_that_outgrows_the_tensor_it_is_written_to_is_refused() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        out = torch.empty(0, device=device())
        torch.mul(x, 2, out=out)
        return [w * out.shape[0] + out.mean()]

    with pytest.raises(Refusal, match="mul: gives the tensor at `out` another size"):
        wrapped(function, lambda: [numbers(3), numbers(3, grad=True)])
