"""Tensors made of others: opened for the graph, built again for the user, and refused where that cannot be right."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from treeplay.errors import Refusal, UsageError
from wrap.aot.oracle import boxed, min_cut, numbers, twin, wrapped
from wrap.aot.pairs import Pair, Strict, nested, pair


def spied(seen: list[Any]) -> Any:
    def compiler(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            seen.append(list(args))
            return run(args)

        return spy

    return compiler


def node_of(call: Any) -> Any:
    """The autograd function of a wrapped call."""
    return call.__globals__["run"].__self__


def grown(*size: int) -> Any:
    return pair(*size, grad=True) * 1


CASES: dict[str, tuple[Any, Any]] = {
    "W14_pair_and_plain": (lambda x, y: [x * y + 1], lambda: [pair(2, 3), numbers(2, 3)]),
    "W14_nested": (lambda x, y: [x * y], lambda: [nested(2, 3), nested(2, 3)]),
    "W14_constant": (lambda x: [x + 1], lambda: [pair(2, tag=7)]),
    "W15_nested_training": (lambda x, y: [(x * y).sin()], lambda: [nested(2, 3, grad=True), numbers(2, 3, grad=True)]),
    "W15_deeper": (lambda x: [x.sin() * 2], lambda: [Pair(nested(2), nested(2) * 2).requires_grad_()]),
    "W15_matrix": (lambda x, w: [torch.tanh(x @ w.t())], lambda: [numbers(4, 3), pair(2, 3, grad=True)]),
    "W15_two_results": (lambda x, y: [x * 2, (x * y).cos()], lambda: [pair(3, grad=True), numbers(3, grad=True)]),
    "W15_returned": (lambda x: [x, x * 2], lambda: [pair(3, grad=True)]),
    "W15_made_inside": (lambda x: [Pair(x * 2, x.sin(), 3)], lambda: [numbers(3)]),
    "W16_write": (lambda x: (x.mul_(2), [x.view(-1)])[1], lambda: [pair(2, 3)]),
    "W16_write_to_grown": (lambda x: (x.mul_(2), [x * 3])[1], lambda: [grown(2, 3)]),
    "W16_write_without_grad": (lambda x: (torch.no_grad()(lambda: x.mul_(2))(), [x + 1])[1], lambda: [grown(2, 3)]),
    "W16_write_to_leaf": (
        lambda x: (torch.no_grad()(lambda: x.mul_(2))(), [x * 3])[1],
        lambda: [pair(2, 3, grad=True)],
    ),
    "W16_plain_written": (lambda x, y: (y.mul_(2), [x * y])[1], lambda: [pair(2, 3), numbers(2, 3)]),
    "W16_view": (lambda x: [x.view(-1), x[1:] * 2], lambda: [pair(2, 3)]),
    "W16_view_of_leaf": (lambda x: [x.view(-1), x * 2], lambda: [pair(2, 3, grad=True)]),
    "W16_slice": (lambda x: [x[1:]], lambda: [pair(3, 2)]),
    "W16_once_twice": (lambda x, y: [x * 2 + y], lambda: [pair(3)] * 2),
}


@pytest.mark.parametrize("partition", ["default", "min_cut"])
@pytest.mark.parametrize("name", CASES)
def test_W15_behaves_like_eager(name: str, partition: str) -> None:
    changes = {"partition": min_cut} if partition == "min_cut" else {}
    twin(*CASES[name], **changes)


def test_W14_a_pair_of_pairs_opens_in_order() -> None:
    seen: list[Any] = []
    call = wrapped(lambda x, y: [x * y], lambda: [nested(2), numbers(2)], inference=spied(seen))
    x, y = nested(2), numbers(2)
    call([x, y])
    parts = [x.a.a, x.a.b, x.b.a, x.b.b, y]
    assert len(seen[0]) == 5 and all(one is other for one, other in zip(seen[0], parts, strict=True))


def test_W14_opening_and_building_are_straight_lines() -> None:
    call = wrapped(lambda x, y: [x * y], lambda: [pair(2), numbers(2)])
    assert "args[:] = [args[0].a, args[0].b, args[1]]" in call.source
    assert "value0 = build_value0({'a': values[0], 'b': values[1]}, context_value0, (2,), (1,))" in call.source
    training = wrapped(lambda x, y: [x * y], lambda: [pair(2, grad=True), numbers(2)])
    node = node_of(training)
    assert "args = [arg0.a, arg0.b, arg1]" in inspect.getsource(node.forward)
    assert "build_gradient0({'a': grads[0], 'b': grads[1]}" in inspect.getsource(node.backward)
    for source in (call.source, training.source, inspect.getsource(node.forward), inspect.getsource(node.backward)):
        assert not any(word in source for word in ("for ", "while ", "lambda"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: [numbers(2), numbers(2)], "x.*expected Pair.*found a plain tensor"),
        (lambda: [pair(2, kind=Strict), numbers(2)], "x.*expected Pair.*found Strict"),
        (lambda: [pair(2), pair(2)], "y.*expected a plain tensor.*found Pair"),
        (lambda: [nested(2), numbers(2)], r"x\.a.*expected a plain tensor.*found Pair"),
        (lambda: [pair(2, tag=5), numbers(2)], "x.*'tag': 0.*found.*'tag': 5"),
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_W14_another_class_does_not_fit_the_plan(given: Any, said: str, grad: bool) -> None:
    ran: list[Any] = []
    changes = {"inference": spied(ran), "forward": spied(ran)}
    call = wrapped(lambda x, y: [x * y], lambda: [pair(2, grad=grad), numbers(2)], **changes)
    with pytest.raises(UsageError, match=said):
        call(given())
    assert ran == []


def test_W14_a_pair_does_not_fit_a_plan_for_plain_tensors() -> None:
    call = wrapped(lambda x, y: [x * y], lambda: [numbers(2), numbers(2)])
    with pytest.raises(UsageError, match=r"\$.y: expected a plain tensor.*found Pair"):
        call([numbers(2), pair(2)])


def test_W14_notes_that_something_in_front_compares_are_not_compared_again() -> None:
    assert "check_notes" in wrapped(lambda x: [x * 2], lambda: [pair(2)]).source
    guarded = wrapped(lambda x: [x * 2], lambda: [pair(2)], is_guarded=True).source
    assert "check_notes" not in guarded and "check_plain" not in guarded


def of_any_size(make: Any) -> Any:
    """What `make` gives of a tensor of four rows, with another number of which it is to work too."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    a = mode.from_tensor(numbers(4, 3), symbolic_context=context)
    with mode:
        return make(a)


def test_W14_a_size_that_the_trace_did_not_know_comes_back_right() -> None:
    sample = of_any_size(lambda a: Pair(a, a * 2))
    call = wrapped(lambda x: [x * 2], lambda: [sample])
    assert "args[0].size(0)" in call.source
    for rows in (4, 6):
        (y,) = call([pair(rows, 3)])
        assert y.shape == (rows, 3) and torch.equal(y.b, pair(rows, 3).b * 2)


def test_W14_sizes_and_strides_of_parts_that_the_trace_did_not_know_come_back_right() -> None:
    sample = of_any_size(lambda a: Pair(Pair(a, a.t().contiguous()), Pair(a * 2, a - 1)))
    call = wrapped(lambda x, y: [x * 2 - 1, y - 3], lambda: [sample, numbers(2)])
    for rows in (4, 6):
        x = Pair(Pair(numbers(rows, 3), numbers(3, rows) / 2), pair(rows, 3))
        found, plain = call([x, numbers(2)])
        assert found.shape == found.b.shape == (rows, 3) and found.a.b.stride() == (rows, 1)
        for part, given in ((found.a.a, x.a.a), (found.a.b, x.a.b), (found.b.a, x.b.a), (found.b.b, x.b.b)):
            assert torch.equal(part, given * 2 - 1)
        assert torch.equal(plain, numbers(2) - 3)


@pytest.fixture
def processes() -> Iterator[Any]:
    """A group of processes whose collectives give what this one has."""
    distributed = pytest.importorskip("torch.distributed")
    testing = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=testing.FakeStore(), rank=0, world_size=2)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


def test_W14_what_is_still_on_its_way_from_other_processes_is_waited_for(processes: Any) -> None:
    collectives = torch.distributed._functional_collectives

    def coming(x: Any) -> Any:
        found = collectives.all_reduce(x, "sum", processes)
        assert type(found) is collectives.AsyncCollectiveTensor
        return found

    x, y = numbers(3), numbers(3) + 1
    call = wrapped(lambda x, y: [x * y], lambda: [numbers(3), numbers(3)])
    assert type(call([coming(x), y])[0]) is torch.Tensor and torch.equal(call([x, coming(y)])[0], x * y)
    traced_so = wrapped(lambda x, y: [x * y], lambda: [coming(numbers(3)), numbers(3)])
    assert "args[0] = waited(args[0])" in traced_so.source and torch.equal(traced_so([coming(x), y])[0], x * y)
    (inside,) = wrapped(lambda p: [p * 2], lambda: [pair(3)])([Pair(coming(x), y)])
    assert torch.equal(inside.a, x * 2) and torch.equal(inside.b, y * 2)
    weight = numbers(3, grad=True)
    wrapped(lambda w: [w * 2], lambda: [numbers(3, grad=True)])([weight])[0].backward(coming(y))
    assert torch.equal(weight.grad, y * 2)


def test_W38_the_missing_gradient_of_a_written_pair_counts_as_zeros() -> None:
    def function(x: Any) -> list[Any]:
        x.mul_(2)
        return [x * 3]

    call, found = wrapped(function, lambda: [grown(2, 3)]), []
    for run in (lambda args: function(*args), call):
        leaf = pair(2, 3, grad=True)
        (y,) = run([leaf * 1])
        y.sum().backward()
        found.append([leaf.grad.a, leaf.grad.b])
    torch.testing.assert_close(found[1], found[0])


def test_W15_results_and_gradients_have_eagers_types() -> None:
    def function(x: Any, y: Any) -> list[Any]:
        return [x * y, None, y.sum(), 3]

    call, gradients = wrapped(function, both), []
    for run in (function, lambda *args: call(list(args))):
        x, y = both()
        results = run(x, y)
        assert [type(item) for item in results] == [Pair, type(None), torch.Tensor, int]
        torch.autograd.backward([results[0].sum(), results[2] * 3])
        assert type(x.grad) is Pair and type(y.grad) is Pair
        gradients.append([x.grad.a, x.grad.b, y.grad.a, y.grad.b])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_W15_parameters_train() -> None:
    def model(x: Any, w: Any) -> Any:
        return [(torch.sin(x @ w) * 2).sum()]

    def make() -> list[Any]:
        return [numbers(2, 3), torch.nn.Parameter(pair(3, 2))]

    call = wrapped(model, make)
    weights = [make()[1] for _ in range(2)]
    for function, weight in zip((model, lambda *args: call(list(args))), weights, strict=True):
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            loss = function(make()[0], weight)[0]
            loss.backward()
            optimizer.step()
    assert isinstance(weights[1].grad, Pair)
    torch.testing.assert_close(weights[1].a, weights[0].a)
    torch.testing.assert_close(weights[1].b, weights[0].b)


def test_W15_saved_values_pass_as_plain_tensors() -> None:
    seen: list[Any] = []
    call = wrapped(lambda x, y: [(x * y).sin()], lambda: [pair(2, grad=True), numbers(2)], backward=spied(seen))
    call([pair(2, grad=True), numbers(2)])[0].sum().backward()
    assert {type(value) for value in seen[0]} == {torch.Tensor}


def refused(function: Any, make: Any) -> str:
    with pytest.raises(Refusal) as caught:
        wrapped(function, make)
    return str(caught.value)


def test_W16_a_changed_shape_is_refused_with_the_line() -> None:
    text = refused(lambda x: (x.t_(), [x + 1])[1], lambda: [pair(2, 3)])
    assert "test_subclasses.py" in text and "the shape of an argument" in text


def test_W16_writes_to_one_pair_given_twice_are_refused() -> None:
    text = refused(lambda x, y: (x.mul_(2), [x + y])[1], lambda: [pair(2)] * 2)
    assert "given twice" in text and "test_subclasses.py" in text


def test_W16_writes_to_pairs_that_overlap_are_refused() -> None:
    def make() -> list[Any]:
        base = numbers(4)
        return [Pair(base[:2], base[2:]), Pair(base[:2], numbers(2))]

    assert "share memory" in refused(lambda x, y: (x.mul_(2), [x + y])[1], make)


def test_W16_overlap_that_was_not_there_at_the_trace_does_not_fit() -> None:
    call = wrapped(lambda x, y: (x.mul_(2), [x + y])[1], lambda: [pair(2), numbers(2)])
    x = pair(2)
    with pytest.raises(UsageError, match="share memory"):
        call([x, x.b])


def test_W16_a_view_whose_parts_lie_otherwise_is_refused() -> None:
    class Turned(Pair):
        """Its second half is stored transposed."""

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.as_strided.default:
                raise NotImplementedError
            return super().__torch_dispatch__(func, types, args, kwargs)

    assert "result 0 is a view" in refused(lambda x: [x.view(-1)], lambda: [pair(2, 3, kind=Turned)])


def both() -> list[Any]:
    return [pair(2, 3, grad=True), numbers(2, 3, grad=True)]


def test_Wplus10_a_result_without_gradient_counts_as_zeros() -> None:
    call = wrapped(lambda x, y: [x * y, (x * y).sin()], both)
    (x, y), (eager_x, eager_y) = both(), both()
    call([x, y])[0].sum().backward()
    (eager_x * eager_y).sum().backward()
    for mine, wanted in ((x.grad, eager_x.grad), (y.grad, eager_y.grad)):
        assert type(mine) is type(wanted)
        torch.testing.assert_close(mine.a, wanted.a)
        torch.testing.assert_close(mine.b, wanted.b)


def test_W38_a_plain_gradient_for_a_pair_is_an_error_with_the_cure() -> None:
    call = wrapped(lambda x, y: [x * y], both)
    (r,) = call(both())
    with pytest.raises(UsageError, match=r"output 0.*expected Pair.*found a plain tensor.*detach\(\)"):
        r.backward(numbers(2, 3))


def test_W38_a_pair_as_gradient_of_a_plain_result_is_an_error_unless_its_class_converts_it() -> None:
    call = wrapped(lambda x, y: [x * y, y * 3], both)
    with pytest.raises(UsageError, match=r"output 1.*expected a plain tensor.*found Pair"):
        call(both())[1].backward(pair(2, 3))


def test_W16_results_that_share_memory_are_refused() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        return [y.view(-1), y.view(-1)[1:]]

    assert "two results share memory" in refused(function, lambda: [pair(2, 3, grad=True)])


def test_W38_a_gradient_with_other_notes_is_an_error() -> None:
    (r,) = wrapped(lambda x, y: [x * y], both)(both())
    with pytest.raises(UsageError, match=r"'tag': 0.*'tag': 9"):
        r.backward(pair(2, 3, tag=9))


def test_W38_the_class_may_convert_a_gradient() -> None:
    def make() -> list[Any]:
        return [pair(2, 3, grad=True, kind=Strict), numbers(2, 3)]

    x, y = make()
    (r,) = wrapped(lambda x, y: [x * y], make)([x, y])
    r.backward(pair(2, 3, tag=9, kind=Strict))
    assert type(x.grad) is Strict and x.grad.tag == 0
    torch.testing.assert_close(x.grad.a, numbers(2, 3) * y)
    (r,) = wrapped(lambda x, y: [x * y], both)(both())
    r.backward(pair(2, 3, tag=9, kind=Strict))


def test_W38_a_wrapper_inside_of_a_gradient_that_has_plain_parts_is_an_error() -> None:
    def make() -> list[Pair]:
        return [Pair(numbers(3), numbers(3)).requires_grad_()]

    (x,) = make()
    (r,) = wrapped(lambda x: [x * x], make)([x])
    inner = Pair(torch.ones(3), torch.ones(3))
    with pytest.raises(UsageError, match=r"gradient\.a.*expected a plain tensor.*found Pair"):
        r.backward(Pair(inner, inner))


def test_W38_inside_of_a_nested_gradient_classes_count_too() -> None:
    (r,) = wrapped(lambda x: [x * 2], lambda: [nested(2, grad=True)])([nested(2, grad=True)])
    with pytest.raises(UsageError, match=r"gradient\.a.*expected Pair.*found a plain tensor"):
        r.backward(pair(2))


def test_W38_inner_layouts_stay_as_traced() -> None:
    strides: list[Any] = []

    def make() -> list[Any]:
        halves = [numbers(2, 3, 4, 5).to(memory_format=torch.channels_last) * k for k in (1, 2)]
        return [Pair(*halves).requires_grad_()]

    seen: list[Any] = []
    call = wrapped(lambda x: [x.sin()], make, backward=spied(seen))
    for gradient in (make()[0].detach(), pair(2, 3, 4, 5)):
        (x,) = make()
        (r,) = call([x])
        assert r.stride() == x.stride() == (60, 1, 15, 3)
        r.backward(gradient)
        strides.append([value.stride() for value in seen[-1]])
        torch.testing.assert_close(x.grad.b, x.b.cos() * gradient.b)
    assert strides[0] == strides[1] and set(strides[0]) == {(60, 1, 15, 3)}


def test_W41_a_second_derivative_of_pairs_raises() -> None:
    x, y = both()
    (r,) = wrapped(lambda x, y: [x * y * y], both)([x, y])
    (gradient,) = torch.autograd.grad(r.sum(), x, create_graph=True)
    assert isinstance(gradient, Pair) and gradient.requires_grad and gradient.grad_fn is not None
    torch.testing.assert_close(gradient.a.detach(), (y * y).detach())
    with pytest.raises(RuntimeError, match=r"differentiated twice: .*made of other tensors"):
        torch.autograd.grad(gradient.sum(), y)
