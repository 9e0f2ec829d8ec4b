"""A forward that gives what only its backward sees in one block: calls and their nodes are what they are without one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from treeplay.torch_seam.tensors import StorageName, view_in_block
from treeplay.values.block import OutputBlock, SavedLayout, SavedPart
from treeplay.values.spec import TensorSpec
from treeplay.wrap.aot.calls.block import from_block
from treeplay.wrap.aot.compilers import INNER
from wrap.aot.oracle import boxed, compilers, cut, numbers, wrapped


class Blocks:
    """A compiler of forwards that put inner values into a block. `beside`: how many of them are left out of it."""

    def __init__(self, beside: int = 0) -> None:
        self.beside, self.is_on = beside, True
        self.inner: list[int] = []
        self.memory: list[StorageName] = []

    def __call__(self, module: torch.fx.GraphModule, inputs: Any) -> Any:
        first, end = module.graph.output_node().meta[INNER]
        self.inner.append(end - first)
        run = boxed(module, inputs)

        def forward(args: list[Any]) -> list[Any]:
            values = list(run(args))
            inner, beside = values[first + self.beside : end], values[first : first + self.beside]
            if not inner or not self.is_on:
                return values
            sizes = [(-1, 1), *((at, TensorSpec.of(value).nbytes) for at, value in enumerate(inner))]
            block = OutputBlock.of(sizes)  # of which no value begins where the block does
            memory = torch.full((block.nbytes,), 255, dtype=torch.uint8, device=inner[0].device)  # not a number
            parts = [None] * self.beside
            for (_, begin), value in zip(block.places[1:], inner, strict=True):
                view_in_block(memory, begin, value).copy_(value)
                parts.append(SavedPart(begin, replace(TensorSpec.of(value), requires_grad=False)))
            self.memory.append(StorageName(memory))
            return [*values[:first], *beside, memory, *values[end:], SavedLayout(tuple(parts), block.nbytes)]

        return forward


def two() -> list[Any]:
    return [numbers(3, grad=True), (numbers(3) * 0.5 - 1).requires_grad_()]


def deep(x: Any, w: Any) -> list[Any]:
    """What it keeps: arguments, and five values of its own."""
    hidden = (x * w).sin()
    more = (hidden * 3 - x).exp()
    return [(more - hidden * w).tanh() * more]


def check(function: Callable[..., Any], blocks: Blocks, *, rounds: int = 3, **changes: Any) -> Any:
    """The gradients of a few calls; returns the wrapped function."""
    call = wrapped(function, two, forward=blocks, **changes)
    for number in range(rounds):
        x, w = two()
        sum(result.sum() * (number + 1) for result in call([x, w])).backward()
        expected = two()
        sum(result.sum() * (number + 1) for result in function(*expected)).backward()
        torch.testing.assert_close([x.grad, w.grad], [one.grad for one in expected])
    return call


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def is_gone(memory: StorageName) -> bool:
    return bool(memory._ref.expired())


@pytest.mark.parametrize("beside", [0, 1, 2])
def test_gradients_are_eagers_with_values_beside_the_block(beside: int) -> None:
    blocks = Blocks(beside)
    call = check(deep, blocks)
    assert call.plan.node.inner == blocks.inner[0] >= 4 and len(blocks.memory) == 3


def test_arguments_and_results_are_no_inner_values() -> None:
    def function(x: Any, w: Any) -> list[Any]:
        shown = x.exp()  # its backward keeps its result
        return [shown * w, shown, shown.view(-1)]

    blocks = Blocks()
    call = check(function, blocks)
    assert call.plan.node.saved >= 2 and call.plan.node.inner == 0 and not blocks.memory


def test_what_is_viewed_by_its_place_in_a_storage_is_no_inner_value() -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            kept = x.sin() * 2
            ctx.save_for_backward(kept)
            return kept.exp()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (kept,) = ctx.saved_tensors
            return grad * torch.as_strided(kept, (3,), (1,), 0).flip(0) - kept

    blocks = Blocks()
    check(lambda x, w: [Reads.apply(x) * w + ((x * w).sin() * x).exp()], blocks, partition=cut)
    assert blocks.memory


def test_a_gradient_never_lies_in_the_block() -> None:
    """A gradient that is a saved value: by the graph, and where what compiles it gives what it was given."""

    class Given(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            kept = x.sin() * 2
            ctx.save_for_backward(kept)
            return kept.exp() - 1

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return ctx.saved_tensors[0]

    def function(x: Any, w: Any) -> list[Any]:
        return [Given.apply(x) + (w.sin() * w).exp()]

    blocks = Blocks()
    check(function, blocks)

    def gives_saved(module: torch.fx.GraphModule, inputs: Any) -> Any:
        def run(args: list[Any]) -> list[Any]:
            given = list(args)
            args.clear()
            return [given[-2], given[-2]]  # the last inner value

        return run

    blocks = Blocks()
    call = wrapped(deep, two, forward=blocks, backward=gives_saved)
    for _ in range(2):
        x, w = two()
        (y,) = call([x, w])
        y.sum().backward()
        assert not blocks.memory[-1].is_of(x.grad) and not blocks.memory[-1].is_of(w.grad)
        assert torch.equal(x.grad, w.grad) and is_gone(blocks.memory[-1])


def test_a_kept_graph_is_used_twice_and_a_freed_one_raises(no_collection: None) -> None:
    blocks = Blocks()
    call = wrapped(deep, two, forward=blocks)
    for _ in range(3):
        x, w = two()
        (y,) = call([x, w])
        y.sum().backward(retain_graph=True)
        first = [x.grad.clone(), w.grad.clone()]
        assert not is_gone(blocks.memory[-1])
        (y * 2).sum().backward()
        torch.testing.assert_close([x.grad, w.grad], [3 * one for one in first])
        assert is_gone(blocks.memory[-1])
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.sum().backward()


def test_a_forward_that_is_dropped_gives_the_block_back_at_once(no_collection: None) -> None:
    blocks = Blocks()
    call = wrapped(deep, two, forward=blocks)
    for _ in range(3):
        results = call(two())
        assert not is_gone(blocks.memory[-1])
        del results
        assert is_gone(blocks.memory[-1])


def test_two_forwards_before_their_backwards_in_either_order() -> None:
    blocks = Blocks()
    call = wrapped(deep, two, forward=blocks)
    for order in ((0, 1), (1, 0), (0, 1)):
        given = [two(), [value.detach().mul(2).requires_grad_() for value in two()]]
        results = [call(list(one)) for one in given]
        for at in order:
            results[at][0].sum().backward()
        for x, w in given:
            expected = [value.detach().clone().requires_grad_() for value in (x, w)]
            deep(*expected)[0].sum().backward()
            torch.testing.assert_close([x.grad, w.grad], [one.grad for one in expected])


def test_gradients_of_some_results_only() -> None:
    def function(x: Any, w: Any) -> list[Any]:
        shared = (x * w).sin().exp() * 2
        return [shared.tanh() * x, (shared - w).cos() * 3]

    blocks = Blocks()
    call = wrapped(function, two, forward=blocks)
    assert not call.plan.node.groups and call.plan.node.inner
    for which in (0, 1, 0, 1, (0, 1)):
        x, w = two()
        chosen = which if isinstance(which, tuple) else (which,)
        results = call([x, w])
        sum(results[at].sum() for at in chosen).backward()
        expected = two()
        wanted = function(*expected)
        sum(wanted[at].sum() for at in chosen).backward()
        torch.testing.assert_close([x.grad, w.grad], [one.grad for one in expected])


def test_results_with_backwards_of_their_own_have_no_block() -> None:
    """One of them is freed, and the other not."""
    blocks = Blocks()
    call = check(lambda x, w: [x.sin().exp().tanh(), w.cos().exp().tanh()], blocks)
    assert call.plan.node.groups and call.plan.node.inner == 0 and not blocks.memory


def test_hooks_of_the_users_see_each_value_by_itself() -> None:
    packed: list[torch.Tensor] = []
    call = wrapped(deep, two, forward=Blocks())

    def pack(value: torch.Tensor) -> torch.Tensor:
        packed.append(value)
        return value.to(torch.float64) * 2

    x, w = two()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: (value / 2).to(torch.float32)):
        (y,) = call([x, w])
    y.sum().backward()
    assert len(packed) == call.plan.node.saved and {value.dtype for value in packed} == {torch.float32}
    expected = two()
    deep(*expected)[0].sum().backward()
    torch.testing.assert_close([x.grad, w.grad], [one.grad for one in expected])


def test_without_hooks_autograd_keeps_arguments_and_one_thing_more() -> None:
    call = wrapped(deep, two, forward=Blocks())
    (y,) = call(two())
    node = call.plan.node
    assert len(y.grad_fn.saved_tensors) == node.saved - node.inner + 1
    assert [value.dtype for value in y.grad_fn.saved_tensors].count(torch.uint8) == 1


def test_a_write_to_an_argument_between_forward_and_backward_is_noticed() -> None:
    call = wrapped(deep, two, forward=Blocks())
    x, w = (value.detach().clone().requires_grad_() for value in two())
    given = [x * 1, w * 1]
    (y,) = call(list(given))
    with torch.no_grad():
        given[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_derivatives_of_the_backward_are_eagers() -> None:
    call = wrapped(deep, two, forward=Blocks(), plain=compilers)
    x, w = two()
    (gradient,) = torch.autograd.grad(call([x, w])[0].sum(), x, create_graph=True)
    (gradient * w).sum().backward()
    a, b = two()
    (expected,) = torch.autograd.grad(deep(a, b)[0].sum(), a, create_graph=True)
    (expected * b).sum().backward()
    torch.testing.assert_close([gradient, x.grad, w.grad], [expected, a.grad, b.grad])


class Backward:
    """A compiled backward that can take the block. `compiled`: where values lay that one was compiled for; `taken`: what came
    in a block."""

    compiled: list[list[int]]
    taken: list[tuple[int, torch.dtype]]

    def __init__(self, module: Any, inputs: Any) -> None:
        self.compiled.append([getattr(value, "storage_offset", int)() for value in inputs])
        self.run = boxed(module, inputs)

    def __call__(self, args: list[Any]) -> Any:
        return self.run(args)

    def in_block(self, layout: SavedLayout, first: int) -> Any:
        def run(args: list[Any]) -> Any:
            self.taken.append((len(args), args[first].dtype))
            return inner(args)

        inner = from_block(self.run, layout, first)
        return run


@pytest.fixture
def backward() -> type[Backward]:
    return type("Fresh", (Backward,), {"compiled": [], "taken": []})


def test_a_backward_that_can_take_the_block_is_given_it(backward: type[Backward]) -> None:
    """And one that is compiled before any block came is not compiled again."""
    node = check(deep, Blocks(), backward=backward).plan.node
    assert len(backward.compiled) == 1 and set(backward.compiled[0]) == {0}, "compiled for values that lie apart"
    assert backward.taken == [(node.saved - node.inner + 2, torch.uint8)] * 3


def check_call(call: Any, *, is_parameter: bool) -> None:
    """The gradients of one call, with tensors or with parameters."""
    x, w = (nn.Parameter(value.detach()) for value in two()) if is_parameter else two()
    (y,) = call([x, w])
    y.sum().backward()
    expected = two()
    deep(*expected)[0].sum().backward()
    torch.testing.assert_close([x.grad, w.grad], [one.grad for one in expected])


def test_a_backward_takes_the_block_also_where_values_differ_in_what_it_does_not_matter_for(
    backward: type[Backward],
) -> None:
    """The type of a leaf, say, or the device of attention's seeds, which are a GPU's once they are captured."""
    call = wrapped(deep, two, forward=Blocks(), backward=backward)
    for number, is_parameter in enumerate([True, False, False, True, False], 1):
        check_call(call, is_parameter=is_parameter)
        assert len(backward.taken) == number and len(backward.compiled) == 1


def test_a_backward_for_some_results_takes_the_block_too(backward: type[Backward]) -> None:
    """As of a model whose loss uses one of its results. Of the values beside the block it takes those that it needs."""

    def function(x: Any, w: Any) -> list[Any]:
        shared = (x * w).sin().exp() * 2
        return [shared.tanh() * x, (shared - w).cos() * 3, shared.atan() + w]

    call = wrapped(function, two, forward=Blocks(), backward=backward)
    calls = ((0,), (2,), (0,), (0, 1, 2), (1, 2), (2,), (0,), (0, 1, 2))
    for number, chosen in enumerate(calls, 1):
        x, w = two()
        results = call([x, w])
        sum((at + 1) * results[at].sum() for at in chosen).backward()
        expected = two()
        wanted = function(*expected)
        sum((at + 1) * wanted[at].sum() for at in chosen).backward()
        torch.testing.assert_close([x.grad, w.grad], [one.grad for one in expected])
        del results
        assert len(backward.taken) == number, "each call gives the block to its backward"
    assert len(backward.compiled) == len(set(calls)) and all(dtype is torch.uint8 for _, dtype in backward.taken)
    counts = dict(zip(calls, [count for count, _ in backward.taken], strict=True))
    assert counts[0,] < counts[0, 1, 2], "no gradients that did not come"


def test_a_backward_that_was_compiled_without_a_block_takes_one_later(backward: type[Backward]) -> None:
    """As where a forward is recorded in its third call; and its values need not be alike in everything."""
    blocks = Blocks()
    call = wrapped(deep, two, forward=blocks, backward=backward)
    for number, is_parameter in enumerate([True, True, False, False]):
        blocks.is_on = number > 1
        check_call(call, is_parameter=is_parameter)
    assert len(backward.taken) == 2 and len(backward.compiled) == 1
