"""Numbers of one form are computed together, and are what each is by itself.

Bit for bit on a GPU, which is what computes them: a kernel does the same for each element. On a CPU torch computes powers of
several numbers at once with other instructions than a power of one, and they may differ in the last bit.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.fx
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from support import assert_same
from treeplay.lower.numbers import split_numbers
from treeplay.lower.numbers_together import NumbersTogether, compute, numbers_together
from treeplay.values.spec import TensorSpec

aten = torch.ops.aten
READ = aten._local_scalar_dense.default
BINARY = (operator.add, operator.sub, operator.mul, operator.truediv)
ON_GPU = (*BINARY, operator.pow)


class Numbers:
    """A graph of numbers that are read from tensors and computed with, and their values, each computed by itself."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.graph = torch.fx.Graph()
        self.numbers: list[torch.fx.Node] = []
        self.values: dict[torch.fx.Node, Any] = {}

    def tensor(self, value: Any, dtype: torch.dtype = torch.float32) -> torch.fx.Node:
        node = self.graph.placeholder(f"in{len(self.graph.nodes)}")
        self.values[node] = torch.tensor(value, dtype=dtype, device=self.device)
        node.meta["spec"] = TensorSpec.of(self.values[node])
        return node

    def known(self, value: float) -> torch.fx.Node:
        node = self.graph.placeholder(f"s{len(self.graph.nodes)}")
        self.values[node] = torch.tensor(value, dtype=torch.float64, device=self.device)
        return node

    def call(self, target: Any, *args: Any) -> torch.fx.Node:
        node = self.graph.call_function(target, args)
        self.values[node] = compute(target, [self.values.get(arg, arg) for arg in args])
        self.numbers.append(node)
        return node

    def check(self) -> int:
        """That all numbers are what they are by themselves, also as lists; how often something was computed."""
        for number, found in self._computed(is_compiled=True)[0].items():
            assert_same(found, self.values[number], number.name)
        computed, together = self._computed(is_compiled=False)
        for number, found in computed.items():
            if self.device == "cpu" and self._is_made_of_a_power(number):
                torch.testing.assert_close(found, self.values[number], rtol=1e-13, atol=0.0)
            else:
                assert_same(found, self.values[number], number.name)
        return sum(len(each._forms) for each in together)

    def _computed(self, *, is_compiled: bool) -> tuple[dict[torch.fx.Node, Any], list[NumbersTogether]]:
        found = numbers_together(self.graph, split_numbers(self.graph), is_compiled=is_compiled)
        assert found.keys() == {node.name for node in self.numbers}
        together = [*{id(each): each for each in found.values()}.values()]
        computed: dict[str, Any] = {}
        for each in together:
            computed |= each.computed(lambda node: computed.get(node.name, self.values[node]))
        return {node: computed[node.name] for node in self.numbers}, together

    def _is_made_of_a_power(self, node: torch.fx.Node) -> bool:
        return node.target is operator.pow or any(map(self._is_made_of_a_power, node.all_input_nodes))


def test_the_numbers_of_many_parameters_are_computed_at_once() -> None:
    numbers = Numbers()
    rate, beta = numbers.known(0.01), numbers.known(0.9)
    steps = [numbers.tensor(float(at)) for at in range(1, 41)]
    corrections = [
        numbers.call(operator.sub, 1, numbers.call(operator.pow, beta, numbers.call(READ, x))) for x in steps
    ]
    sizes = [numbers.call(operator.truediv, rate, correction) for correction in corrections]
    for size in sizes:
        numbers.call(operator.mul, size, -1)
    assert numbers.check() == 5


def test_what_differs_in_a_sign_of_zero_a_type_or_its_order_is_not_mixed_up() -> None:
    numbers = Numbers()
    read = [numbers.call(READ, numbers.tensor(at, dtype)) for at in range(6) for dtype in (torch.float32, torch.int64)]
    for constant in (0.0, -0.0, 0, 1, 1.0):
        for number in read:
            numbers.call(operator.mul, number, constant)
    for number, other in zip(read, reversed(read), strict=True):
        numbers.call(operator.sub, number, other)
    numbers.check()


def test_between_two_numbers_of_one_form_a_tensor_may_be_written() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["spec"] = TensorSpec.of(torch.tensor(1.0))
    first = graph.call_function(READ, (x,))
    written = graph.call_function(aten.add_.Tensor, (x, first))
    second = graph.call_function(READ, (x,))
    found = numbers_together(graph, split_numbers(graph))
    assert written.name not in found and found[first.name] is not found[second.name]


def test_numbers_that_all_follow_from_one_of_before_are_computed() -> None:
    numbers = Numbers()
    first = numbers.call(READ, numbers.tensor(3.0))
    written = numbers.graph.call_function(aten.add_.Tensor, (numbers.tensor(1.0), first))
    for _ in range(9):
        numbers.call(operator.mul, numbers.call(operator.sub, first, 1), 2.5)
    assert numbers.check() == 3 and written.op == "call_function"


def check_random_numbers(data: st.DataObject, device: str, binary: Sequence[Any]) -> None:
    numbers = Numbers(device)
    constants = st.sampled_from([0.0, -0.0, 0.5, 2, -3.0])
    known = [numbers.known(value) for value in (0.25, -1.5)]
    several = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    level = [numbers.call(READ, numbers.tensor(float(value))) for value in several]
    for _ in range(data.draw(st.integers(1, 5))):
        target, is_turned = data.draw(st.sampled_from([*binary, operator.neg, operator.mod])), data.draw(st.booleans())
        other = data.draw(st.one_of(constants, st.sampled_from(known), st.sampled_from([*numbers.numbers])))
        if target is operator.neg:
            level = [numbers.call(target, number) for number in level]
        else:
            level = [numbers.call(target, *((other, number) if is_turned else (number, other))) for number in level]
    numbers.check()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_numbers_are_what_each_is_by_itself(data: st.DataObject) -> None:
    check_random_numbers(data, "cpu", BINARY)


@pytest.mark.gpu
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_numbers_and_their_powers_are_what_each_is_by_itself_on_a_gpu(data: st.DataObject) -> None:
    check_random_numbers(data, "cuda", ON_GPU)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("exponent", [-1.5, 0.5, 3.3])
def test_powers_of_several_numbers_are_those_of_each(device: str, exponent: float) -> None:
    numbers = Numbers(device)
    for value in (*[1.0] * 7, 8.0, *map(float, range(2, 40))):
        numbers.call(operator.pow, numbers.call(READ, numbers.tensor(value)), exponent)
    assert numbers.check() == 2


def test_what_a_compiler_is_given_stores_the_numbers_that_tensors_take_in_one_list() -> None:
    numbers = Numbers()
    steps = [numbers.tensor(float(at)) for at in range(1, 9)]
    corrections = [numbers.call(operator.pow, 0.9, numbers.call(READ, x)) for x in steps]
    sizes = [numbers.call(operator.truediv, 0.01, correction) for correction in corrections]
    for size in sizes[:5]:
        numbers.graph.call_function(aten.mul.Tensor, (numbers.tensor(1.0), size))
    (together,) = set(numbers_together(numbers.graph, split_numbers(numbers.graph), is_compiled=True).values())
    lists = Lists()
    with lists:
        together.computed(numbers.values.__getitem__)
    assert lists.lengths == [5]


class Lists(TorchDispatchMode):
    """Notes how long the lists are that operators are called with."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], (list, tuple)):
            self.lengths.append(len(args[0]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("count", [1, 3])
def test_a_few_numbers_are_computed_one_by_one(count: int) -> None:
    numbers = Numbers()
    for at in range(count):
        numbers.call(operator.pow, 0.5, numbers.call(READ, numbers.tensor(float(at))))
    assert numbers.check() == 2
