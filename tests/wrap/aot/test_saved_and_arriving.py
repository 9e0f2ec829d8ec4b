"""What a node saves, and in which layout and number gradients reach its backward."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from support import TRACES_STRIDES
from wrap.aot.oracle import alike, boxed, compare_gradients, device, grown, min_cut, numbers, twin, wrapped


def two() -> list[Any]:
    return [numbers(2, 3, grad=True), numbers(2, 3, grad=True)]


def seeing(seen: list[Any]) -> Any:
    """A compiler of backwards that note what they are given."""

    def compiler(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            seen.append([(value.stride(), value.data_ptr()) for value in args if isinstance(value, torch.Tensor)])
            return run(args)

        return spy

    return compiler


def test_W35_memory_is_constant_over_steps_without_the_garbage_collector() -> None:
    def make() -> list[Any]:
        return [numbers(2, 3, grad=True), numbers(2, 3, grad=True)]

    made: list[Any] = []

    def noting(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            values = run(args)
            made.extend(weakref.ref(value) for value in values if isinstance(value, torch.Tensor))
            return values

        return spy

    def function(x: Any, w: Any) -> Any:
        y = (x.sin() * w.cos()).exp()
        return [y, y.view(-1), w[1:]]

    call = wrapped(function, make, partition=min_cut, forward=noting, backward=noting)

    def step() -> int:
        y, view, part = call(make())
        ((y * 2).sum() + view.sum() + part.sum()).backward()
        return sum(value() is not None for value in made)

    gc.disable()
    try:
        alive = [step() for _ in range(20)]
    finally:
        gc.enable()
    # What lives after a step is what its own frame holds until the next one.
    assert len(made) >= 20 * 3 and len(set(alive)) == 1, alive


def test_W35_sizes_suffice_where_a_gradient_is_only_spread() -> None:
    call = twin(lambda x: [x.sum(), x.mean(0)], lambda: [numbers(2, 3, grad=True)])
    assert call.plan.node.saved == 0


def each_apart(module: Any, inputs: Any) -> Any:
    """A compiler whose results know nothing of each other and of the arguments, as Inductor's do, wherever they lie."""
    run = boxed(module, inputs)

    def apart(value: torch.Tensor) -> torch.Tensor:
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        return made.set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())

    def call(args: list[Any]) -> Any:
        given = list(args)
        return [value if any(value is one for one in given) else apart(value) for value in run(args)]

    return call


@pytest.mark.parametrize(
    ("function", "writes"),
    [
        (lambda x, w: [(x * w).exp().view(-1)], lambda x, results: results[0].detach().mul_(2)),
        (lambda x, w: [(x * w).exp().t(), w * 2], lambda x, results: results[0].detach().mul_(2)),
        (lambda x, w: [x[:, 0] * w[0, 0]], lambda x, results: x.mul_(2)),
        (lambda x, w: [x.chunk(2)[1] * w[:1]], lambda x, results: x.mul_(2)),
    ],
    ids=["a result", "one of two", "a part of an argument", "a chunk of an argument"],
)
def test_W35_a_write_to_memory_in_which_a_saved_value_lies_is_noticed(function: Any, writes: Any) -> None:
    make = lambda: [numbers(2, 3), numbers(2, 3, grad=True)]  # noqa: E731
    call = wrapped(function, make, partition=min_cut, forward=each_apart)
    for run in (lambda args: function(*args), call):
        x, w = make()
        results = run([x, w])
        writes(x, results)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            results[0].sum().backward()
    eager, ours = make(), make()
    compare_gradients(function(*eager), call(list(ours)), eager, ours)


def test_W35_a_saved_value_in_the_memory_of_a_result_keeps_no_node_alive() -> None:
    make = lambda: [numbers(2, 3, grad=True)]  # noqa: E731
    call = wrapped(lambda x: [x.exp().view(-1)], make, partition=min_cut, forward=each_apart)
    gc.disable()
    try:
        (result,) = call(make())
        node, memory = weakref.ref(result.grad_fn), weakref.ref(result.untyped_storage())
        del result
        assert node() is None and memory() is None
    finally:
        gc.enable()


def test_W40_saved_tensors_die_inside_the_backward() -> None:
    alive: list[bool] = []
    saved: list[Any] = []

    def watched(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            saved[:] = [weakref.ref(value.untyped_storage()) for value in args[:-1]]
            args.clear()
            alive[:] = [ref() is not None for ref in saved]
            return [alike(1, 2, 3)] * 2

        del run
        return spy

    call = wrapped(lambda x, w: [((x + w).sin() * 3).exp().sum()], two, backward=watched)
    call(two())[0].backward()
    assert alive == [False] * len(alive) and alive
    (y,) = call(two())
    y.backward(retain_graph=True)
    assert any(alive)


def test_W36_a_gradient_dies_once_the_backward_has_emptied_its_list() -> None:
    alive: list[bool] = []

    def watched(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            gradient = weakref.ref(args[-1])
            gradients = run(args)
            alive.append(gradient() is not None)
            return gradients

        return spy

    call = wrapped(lambda x, w: [x * w], two, backward=watched)
    (call(two())[0] * 2).sum().backward()
    assert alive == [not hasattr(torch.autograd.Function, "boxed_grads_call")]


def test_W36_one_of_two_results_is_used() -> None:
    def function(x: Any, w: Any) -> Any:
        return [(x * w).sin(), x / w, x.size(0)]

    def make() -> list[Any]:
        return [numbers(2, 3, grad=True), numbers(2, 3, grad=True)]

    call = wrapped(function, make)
    assert [tangent.value for tangent in call.plan.node.tangents] == [0, 1], "a size has no gradient"
    for used in (0, 1):
        eager, ours = make(), make()
        left, right = function(*eager)[used], call(list(ours))[used]
        compare_gradients([left], [right], eager, ours)


@pytest.mark.parametrize(
    "make",
    [
        lambda: alike(3, 3, 4).t(),
        lambda: numbers(8, 6)[::2, ::2],
        lambda: alike(3, 1, 1).expand(4, 3),
        lambda: numbers(7).as_strided((4, 3), (1, 1)),
        lambda: numbers(3, 4).flip(0).t(),
    ],
    ids=["transposed", "gapped", "expanded", "overlapping", "flipped"],
)
def test_W37_gradients_of_any_layout_are_right(make: Any) -> None:
    seen: list[Any] = []
    call = wrapped(lambda x: [x.t().sin()], lambda: [numbers(3, 4, grad=True)], backward=seeing(seen))
    gradient, x, twin_x = make(), numbers(3, 4, grad=True), numbers(3, 4, grad=True)
    call([x])[0].backward(gradient)
    twin_x.t().sin().backward(gradient)
    torch.testing.assert_close(x.grad, twin_x.grad)
    assert seen[0][-1][0] == ((1, 4) if TRACES_STRIDES else (3, 1))


@pytest.mark.parametrize("view", [torch.conj, torch._neg_view], ids=["conjugated", "negated"])
@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_W37_a_gradient_that_reads_otherwise_than_its_memory_arrives_as_it_reads(view: Any, shape: Any) -> None:
    """Compiled code and recordings read memory, and know nothing of the bits that conjugate or negate a tensor."""
    dtype = torch.complex64 if view is torch.conj else torch.float32
    plain: list[bool] = []

    def compiler(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            plain.append(not any(value.is_conj() or value.is_neg() for value in args))
            return run(args)

        return spy

    def make() -> torch.Tensor:
        return torch.full(shape, 2 + 3j if dtype.is_complex else 2, dtype=dtype, device=device(), requires_grad=True)

    call = wrapped(lambda x: [x.sin()], lambda: [make()], backward=compiler)
    for _ in range(2):
        gradient, x, twin_x = view(torch.randn(shape, dtype=dtype, device=device())), make(), make()
        call([x])[0].backward(gradient)
        twin_x.sin().backward(gradient)
        torch.testing.assert_close(x.grad, twin_x.grad)
    assert plain == [True, True]


def test_W37_a_contiguous_gradient_reaches_a_backward_of_channels_last_as_channels_last() -> None:
    def make() -> list[Any]:
        return [numbers(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()]

    seen: list[Any] = []
    call = wrapped(lambda x: [x.sin()], make, backward=seeing(seen))
    gradients = [numbers(2, 3, 4, 5), numbers(2, 3, 4, 5).to(memory_format=torch.channels_last)]
    for gradient in gradients:
        (x,), (other,) = make(), make()
        call([x])[0].backward(gradient)
        other.sin().backward(gradient)
        torch.testing.assert_close(x.grad, other.grad)
        assert seen[-1][-1][0] == (60, 1, 15, 3)
    assert seen[-1][-1][1] == gradients[1].data_ptr(), "one that lies as it should was copied"


@pytest.mark.skipif(not TRACES_STRIDES, reason="this torch traces all gradients as contiguous")
def test_W37_results_with_gaps_take_gradients_without() -> None:
    """Such a result is a part of something greater. Its gradients have its size, and would be spread out to be taken."""
    seen: list[Any] = []
    make = lambda: [numbers(4, 5, 6, grad=True)]  # noqa: E731
    function = lambda x: [x.sin()[:, -1], *x.cos().transpose(0, 2).split([2, 4])]  # noqa: E731
    call = wrapped(function, make, backward=seeing(seen))
    for _ in range(2):
        (x,), (other,) = make(), make()
        results, wanted = call([x]), function(other)
        gradients = [torch.randn_like(result) for result in results]
        torch.autograd.backward(results, gradients)
        torch.autograd.backward(wanted, gradients)
        torch.testing.assert_close(x.grad, other.grad)
        arrived = [address for _, address in seen[-1][-3:]]
        assert [gradient.data_ptr() for gradient in gradients] == arrived, "one that could be taken was copied"


def test_W37_results_that_overlap_themselves_take_contiguous_gradients() -> None:
    seen: list[Any] = []
    make = lambda: [numbers(3, grad=True)]  # noqa: E731
    call = wrapped(lambda x: [(x * 2).expand(4, 3)], make, backward=seeing(seen))
    (x,) = make()
    (y,) = call([x])
    assert y.stride() == (0, 1) and call.plan.node.tangents[0].layout.stride == (3, 1)
    y.backward(numbers(4, 3))
    assert seen[0][-1][0] == (3, 1)
    torch.testing.assert_close(x.grad, numbers(4, 3).sum(0) * 2)


def test_W37_sparse_gradients_pass() -> None:
    rows = torch.tensor([1, 1, 0], device=device())
    found = []
    make = lambda: [numbers(3, 2, grad=True)]  # noqa: E731
    for run in (lambda args: [args[0] * 2, args[0] * 3], wrapped(lambda w: [w * 2, w * 3], make)):
        (w,) = make()
        (y, _) = run([w])
        torch.nn.functional.embedding(rows, y, sparse=True).sum().backward()
        found.append(w.grad)
    assert [gradient.layout for gradient in found] == [torch.sparse_coo] * 2
    torch.testing.assert_close(found[1].to_dense(), found[0].to_dense())


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_W37_permuted_results_as_in_attention(partition: str) -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (item.view(2, 5, 2, 3).transpose(1, 2) for item in (q, k, v))
        out = torch.softmax(q @ k.transpose(-2, -1), -1) @ v
        return [out.transpose(1, 2), out.permute(0, 3, 1, 2), q]

    twin(
        attention,
        lambda: [numbers(2, 5, 6, grad=True), grown(2, 5, 6) / 9, numbers(2, 5, 6, grad=True)],
        **({"partition": min_cut} if partition == "min_cut" else {}),
    )
