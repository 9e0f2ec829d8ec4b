"""The generated call function of inference plans: its text, its list, what it keeps alive, and the modes around it."""

from __future__ import annotations

import gc
import inspect
import linecache
import traceback
import weakref
from typing import Any

import pytest
import torch

from treeplay.errors import InternalError, Refusal, UsageError
from wrap.aot.oracle import boxed, compare, device, grown, numbers, twin, wrapped


def added(x: Any, y: Any) -> Any:
    return [x + y]


def product(x: Any, y: Any) -> Any:
    return [(x * y).sin(), x - y]


def two() -> list[Any]:
    return [numbers(2, 3), numbers(2, 3)]


def test_W1_a_plain_call_is_eight_lines_without_a_loop() -> None:
    source = wrapped(added, two).source
    assert len(source.splitlines()) <= 8
    assert not any(word in source for word in ("for ", "while ", "lambda"))


def test_W1_a_write_changes_only_lines_that_mention_it() -> None:
    plain = set(wrapped(added, two).source.splitlines())
    written = set(wrapped(lambda x, y: (y.mul_(2), [x + y])[1], two).source.splitlines())
    changed = [line for line in plain ^ written if "values" not in line and not line.lstrip().startswith("at")]
    assert changed and all("arg1" in line or "args[1]" in line for line in changed)


def test_W2_the_text_is_shown_in_tracebacks_and_goes_with_the_function() -> None:
    def fails(module: Any, inputs: Any) -> Any:
        def run(args: list[Any]) -> Any:
            raise ValueError("inside")

        return run

    call = wrapped(added, two, inference=fails)
    file = call.__code__.co_filename
    assert inspect.getsource(call) == call.source
    with pytest.raises(ValueError, match="inside") as caught:
        call(two())
    shown = "".join(traceback.format_exception(caught.value))
    assert "run(args)" in shown and file in shown
    del call, caught
    gc.collect()
    assert file not in linecache.cache


@pytest.mark.parametrize("grad", [False, True])
def test_W4_the_list_is_empty_even_if_the_forward_raises(grad: bool) -> None:
    def fails(args: list[Any]) -> Any:
        raise ValueError

    def make() -> list[Any]:
        return [numbers(2, 3, grad=grad), numbers(2, 3)]

    call = wrapped(added, make, inference=lambda *_: fails, forward=lambda *_: fails)
    given = make()
    with pytest.raises(ValueError):
        call(given)
    assert given == [] and torch.is_grad_enabled()


@pytest.mark.parametrize("grad", [False, True])
def test_W4_a_wrong_number_of_values_is_an_internal_error(grad: bool) -> None:
    def make() -> list[Any]:
        return [numbers(2, 3, grad=grad), numbers(2, 3)]

    def less(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)
        return lambda args: run(args)[:-1]

    saved = 0 if not grad else wrapped(lambda x, y: [x + y, x - y, x * y], make).plan.node.saved
    call = wrapped(lambda x, y: [x + y, x - y, x * y], make, inference=less, forward=less)
    given = make()
    with pytest.raises(InternalError, match=f"expected {3 + saved}, got {2 + saved}"):
        call(given)
    assert given == []


def test_W4_values_are_counted_with_writes_and_bases() -> None:
    def function(a: Any, b: Any, x: Any) -> Any:
        a.mul_(2)
        y = (x * 3).exp()
        return [a + b, y.view(-1), y.t()]

    def make() -> list[Any]:
        whole = numbers(3)
        return [whole[:2], whole[1:], numbers(2, 2, grad=True)]

    def less(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)
        return lambda args: run(args)[1:]

    plan = wrapped(function, make).plan
    assert (len(plan.writes), len(plan.results), plan.values) == (1, 3, 1 + 3 + 1)  # the last is what both views are of
    whole = plan.values + plan.node.saved
    with pytest.raises(InternalError, match=f"expected {whole}, got {whole - 1}"):
        wrapped(function, make, forward=less)(make())


def test_W4_a_wrong_number_of_gradients_is_an_internal_error() -> None:
    def make() -> list[Any]:
        return [numbers(2, grad=True), numbers(2, grad=True)]

    call = wrapped(lambda x, y: [x * y], make, backward=lambda *_: lambda args: (args.clear(), (None,))[1])
    with pytest.raises(InternalError, match=r"the backward.*expected 2, got 1"):
        call(make())[0].sum().backward()


@pytest.mark.parametrize("as_result", [list, tuple, lambda values: values[0]])
@pytest.mark.parametrize("grad", [False, True])
def test_W4_a_lone_value_counts_as_one(as_result: Any, grad: bool) -> None:
    def inner(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)
        return lambda args: as_result(run(args))

    def make() -> list[Any]:
        return [numbers(1, grad=grad)]  # of one row: its length is one too

    def function(x: Any) -> Any:
        return [x + 3]

    compare(function, wrapped(function, make, inference=inner, forward=inner, backward=inner), make)


def test_W4_no_results_may_be_none() -> None:
    call = wrapped(lambda x: [], lambda: [numbers(2)], inference=lambda *_: lambda args: args.clear())
    assert call([numbers(2)]) == []


@pytest.mark.parametrize("is_kept", [False, True])
def test_W5_arguments_die_inside_the_forward_unless_a_result_is_their_view(is_kept: bool) -> None:
    alive: list[bool] = []
    watched: list[Any] = []

    def compiler(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            watched.append(weakref.ref(args[0]))
            result = run(args)
            alive.append(watched[0]() is not None)
            return result

        return spy

    def function(x: Any) -> Any:
        return [x.sin().cos(), x.view(-1)] if is_kept else [x.sin().cos()]

    call = wrapped(function, lambda: [numbers(2, 3)], inference=compiler)
    call([numbers(2, 3)])
    assert alive == [is_kept]


def test_W21_modes_around_the_forward() -> None:
    modes: list[Any] = []

    def compiler(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            modes.append((torch.is_grad_enabled(), torch.is_autocast_enabled(device())))
            return run(args)

        return spy

    def make() -> list[Any]:
        return [numbers(2, 2), numbers(2, 2)]

    with torch.autocast(device(), dtype=torch.bfloat16):
        call = wrapped(lambda x, y: [x @ y], make, inference=compiler)
        assert call(make())[0].dtype is torch.bfloat16
        assert torch.is_autocast_enabled(device())
    assert modes == [(False, False)] and torch.is_grad_enabled()


def test_W28_a_changed_grad_mode_stands_afterwards() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        torch._C._set_grad_enabled(False)
        return [y]

    try:
        call = wrapped(function, lambda: [numbers(2, grad=True)])
        torch._C._set_grad_enabled(True)
        (y,) = call([numbers(2, grad=True)])
        assert not torch.is_grad_enabled() and y.requires_grad
    finally:
        torch._C._set_grad_enabled(True)


def test_W25_changes_that_cancel_only_move_the_version() -> None:
    call = twin(lambda x: (x.t_(), x.t_(), [x + 1])[2], lambda: [numbers(2, 3)])
    assert call.plan.writes == () and call.plan.touched == (0,)


def test_W8_another_pattern_of_one_tensor_twice_does_not_fit() -> None:
    call = wrapped(lambda a, b: (a.mul_(2), [a + b])[1], lambda: [numbers(2)] * 2)
    y, z = numbers(2), numbers(2) + 1
    before = y.clone(), z.clone()
    with pytest.raises(UsageError, match=r"argument 0 \(`a`\) and argument 1 \(`b`\) were one"):
        call([y, z])
    assert torch.equal(y, before[0]) and torch.equal(z, before[1])


def test_Wplus1_overlap_that_was_not_there_at_the_trace_does_not_fit() -> None:
    call = wrapped(lambda a, b: (a.mul_(2), [a + b])[1], lambda: [numbers(2), numbers(2)])
    x = numbers(4)
    for one, other in ((x[:2], x[1:3]), (x[:2], x[:2])):
        with pytest.raises(UsageError, match="share memory"):
            call([one, other])
    assert torch.equal(call([x[:2], x[2:]])[0], numbers(4)[:2] * 2 + numbers(4)[2:])


def test_Wplus1_a_written_tensor_given_twice_does_not_fit_a_plan_for_two() -> None:
    call = wrapped(lambda a, b: (a.mul_(2), [a + b])[1], two)
    x = numbers(2, 3)
    with pytest.raises(UsageError, match="share memory"):
        call([x, x])


def refused(function: Any, make: Any) -> str:
    with pytest.raises(Refusal) as caught:
        wrapped(function, make)
    return str(caught.value)


def test_Wplus4_a_write_to_a_leaf_is_refused_with_the_line() -> None:
    text = refused(lambda x: [x.mul_(2)], lambda: [numbers(2, grad=True)])
    assert "leaf" in text and "test_inference.py" in text
    assert "leaf" in refused(lambda x: [x[0].mul_(2)], lambda: [numbers(2, grad=True)])


def test_Wplus3_changed_flags_are_refused() -> None:
    assert "requires_grad_" in refused(lambda x: [x.requires_grad_() * 2], lambda: [numbers(2)])
    assert "detach_" in refused(lambda x: [x.detach_() * 2], lambda: [grown(2)])


def test_W25_a_shape_changed_before_a_write_is_refused_with_gradients() -> None:
    def function(x: Any) -> Any:
        view = x.unsqueeze(0)
        x.t_()
        x.mul_(2)
        return [view.sin()]

    assert "t_" in refused(function, lambda: [grown(2, 2)])
    unseen = torch.no_grad()(lambda x: x.mul_(3))
    assert "t_" in refused(lambda x: (x.t_(), unseen(x), [x])[2], lambda: [grown(4, 2)[:2]])
    assert "under no_grad" in refused(lambda x: (unseen(x), x.t_(), [x])[2], lambda: [grown(4, 2)[:2]])
    twin(function, lambda: [numbers(2, 2)])


@pytest.mark.parametrize("make", [lambda: [grown(4, 3)[1:3]], lambda: [grown(2, 3)]], ids=["view", "whole"])
def test_W25_an_argument_that_needs_a_gradient_is_written_and_changes_its_shape(make: Any) -> None:
    twin(lambda x: [x.t_(), x * 3], make)
    twin(lambda x: (x.mul_(x * 2), x.t_(), [x.sin()])[2], make)


def test_W27_a_replaced_storage_is_refused() -> None:
    def function(x: Any, y: Any) -> Any:
        with torch.no_grad():
            x.set_(y)
        return [x + 1]

    refused(function, two)


def test_what_raises_in_the_trace_is_refused_with_the_users_line() -> None:
    text = refused(lambda x: [x @ x], lambda: [numbers(2, 3)])
    assert "test_inference.py" in text


def test_sample_inputs_must_be_flat() -> None:
    with pytest.raises(UsageError, match="flatten"):
        wrapped(lambda x: [x], lambda: [[numbers(2)]])


def test_a_refusal_keeps_what_torch_raised_as_its_cause() -> None:
    def fails(x: Any) -> Any:
        raise KeyError("a key of the user's")

    with pytest.raises(Refusal) as refused:
        wrapped(fails, lambda: [numbers(2)])
    assert isinstance(refused.value.__cause__, KeyError)
