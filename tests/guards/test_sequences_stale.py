"""Lists of any length, tuples, deques and arrays whose contents change between calls."""

from __future__ import annotations

import array
import collections
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from support.follows import Holder, Story, folded, follows

Tensor = torch.Tensor


class Point(NamedTuple):
    gain: Any
    parts: Any


@follows()
def test_a_namedtuple_that_is_replaced() -> Story:
    holder = Holder(Point(2.0, (1.0, 3.0)))
    yield lambda x: x * holder.value.gain - holder.value.parts[1]
    holder.value = holder.value._replace(gain=5.0)
    yield
    holder.value = Point(5.0, (1.0, 4.0))
    yield


@follows()
def test_a_namedtuple_that_holds_what_changes() -> Story:
    point = Point({"a": 2.0}, [1.0, 3.0])
    yield lambda x: folded(x * point.gain["a"], point.parts) - len(point.parts)
    point.gain["a"] = 5.0
    yield
    point.parts[1] = 4.0
    yield
    point.parts.append(2.0)
    yield


@follows()
def test_a_tuple_that_holds_objects() -> Story:
    rates = (Holder(2.0), [3.0], {"c": 4.0}, torch.float64)
    holder = Holder(rates)

    def use(x: Tensor) -> Tensor:
        first, second, third, dtype = holder.value
        return (x * first.value - second[0]).to(dtype) * third["c"]

    yield use
    rates[0].value = 5.0
    yield
    rates[1][0] = 6.0
    yield
    holder.value = (*rates[:3], torch.float32)
    yield
    holder.value = (Holder(7.0), *rates[1:])
    yield


@pytest.mark.parametrize("length", [3, 16, 17, 40, 300])
@follows()
def test_a_list_of_numbers(length: int) -> Story:
    weights = [1.0 + k / length for k in range(length)]
    yield lambda x: x * weights[length // 2] - weights[-1] + sum(weights) / length
    weights[length // 2] = 7.0
    yield
    weights[-1] = 9.0
    yield


@pytest.mark.parametrize("length", [4, 20])
@follows()
def test_a_list_that_is_iterated(length: int) -> Story:
    weights = [1.0 + k / length for k in range(length)]
    yield lambda x: folded(x, weights) + folded(x, weights[1:3]) * 2 - weights.index(1.25 if length == 4 else 1.5)
    weights[0] = 1.5 if length == 4 else 1.25
    yield
    weights.append(0.5)
    yield
    weights.reverse()
    yield


def _star(a: Any, x: Tensor) -> Tensor:
    first, *others = a
    return folded(x * first, others)


SEQUENCES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "iteration": lambda a, x: folded(x, a),
    "index": lambda a, x: x * float(a[0]) - float(a[-1]),
    "unpacking": _star,
    "length": lambda a, x: x * len(a) - 1,
    "enumerate": lambda a, x: folded(x, (value * (number + 1) for number, value in enumerate(a))),
    "zip": lambda a, x: folded(x, (u * 2 - v for u, v in zip(a, reversed(a), strict=True))),
    "sum": lambda a, x: x * float(sum(a)) - 1,
    "max": lambda a, x: x * float(max(a)) - 1,
    "sorted": lambda a, x: folded(x, sorted(a)),
    "membership": lambda a, x: x * 2 if 3 in a else x - 1,
    "count": lambda a, x: x * 2 if list(a).count(3.0) else x - 1,
    "tuple of it": lambda a, x: folded(x, tuple(a)),
    "any": lambda a, x: x * 2 if any(value > 2.5 for value in a) else x - 1,
    "a tensor of it": lambda a, x: x * torch.tensor([float(value) for value in a])[0] - 1,
}
MAKERS: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "deque": collections.deque,
    "UserList": collections.UserList,
    "array": lambda values: array.array("d", values),
    "NumPy": np.array,
    "bytearray": lambda values: bytearray(int(value) for value in values),
    "memoryview": lambda values: memoryview(array.array("d", values)),
}


@pytest.mark.parametrize("read", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@follows()
def test_a_sequence(read: Callable[[Any, Tensor], Tensor], make: Callable[[Any], Any]) -> Story:
    holder = Holder(make([2.0, 1.0, 1.0]))
    yield lambda x: read(holder.value, x)
    holder.value[0] = 3
    yield
    holder.value[0], holder.value[2] = 2, 4
    yield
    holder.value = make([2.0, 1.0, 4.0, 5.0])
    yield


@follows()
def test_a_deque_of_tensors_and_numbers() -> Story:
    window = collections.deque([torch.ones(3), torch.full((3,), 2.0)], maxlen=3)

    def use(x: Tensor) -> Tensor:
        for item in window:
            x = x * 2 - item
        return x

    yield use
    window.append(torch.full((3,), 5.0))
    yield
    window.rotate(1)
    yield
    window[0] = torch.zeros(3)
    yield


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.bool_])
@pytest.mark.parametrize(
    "read",
    [
        lambda a, x: x * float(a[0]) - 1,
        lambda a, x: x * a.item(0) - 1,
        lambda a, x: x * a.sum().item() - 1,
        lambda a, x: x * float(a.mean()) - float(a.max()),
        lambda a, x: x * torch.tensor(a.tolist()) - 1,
        lambda a, x: x * (2 if a[0] else 5) - 1,
        lambda a, x: x * (2 if (a[:2] == 0).any() else 5) - 1,
        lambda a, x: x * float(np.dot(a.astype(np.float64), [1.0, 2.0, 3.0])) - 1,
    ],
    ids=["index", "item", "sum", "mean", "tolist", "truth", "any", "dot"],
)
@follows()
def test_a_numpy_array_changed_in_place(read: Callable[[Any, Tensor], Tensor], dtype: Any) -> Story:
    holder = Holder(np.array([1, 1, 0], dtype=dtype))
    yield lambda x: read(holder.value, x)
    holder.value[0] = 0
    yield
    holder.value[:] = [0, 0, 1]
    yield


@pytest.mark.parametrize("how", ["from_numpy", "as_tensor", "asarray", "tensor"])
@follows(may_refuse=True)
def test_a_numpy_array_made_a_tensor_inside(how: str) -> Story:
    weights = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    yield lambda x: x * getattr(torch, how)(weights) - 1
    weights[1] = 7.0
    yield


@follows()
def test_a_view_of_a_numpy_array() -> Story:
    base = np.arange(6.0).reshape(2, 3)
    row = base[1]
    yield lambda x: x * float(row[0]) - row.size - base.shape[0]
    base[1, 0] = 9.0
    yield


@follows()
def test_a_deque_that_takes_another_number_of_items() -> Story:
    holder = Holder(collections.deque([1.0, 2.0], maxlen=4))
    yield lambda x: x * sum(holder.value) - (holder.value.maxlen or 0)
    holder.value = collections.deque([1.0, 2.0], maxlen=7)
    yield
    holder.value = collections.deque([1.0, 2.0])
    yield


@follows()
def test_a_masked_numpy_array() -> Story:
    """A guard over it looked for the number that fills in, which it may not set on NumPy's own: an error of treeplay's."""
    array = np.ma.array([1.0, 2.0, 4.0], mask=[False, True, False])
    yield lambda x: x * float(array.sum())
    array.mask = [False, False, True]
    yield
    array[0] = 9.0
    yield


@follows()
def test_a_list_that_was_found_by_another_way_than_the_one_the_program_goes() -> Story:
    first: list[Any] = [torch.full((1,), 0.3), *([1.5] * 3)]
    namespace = types.SimpleNamespace(parts=first)
    module: Any = types.ModuleType("world")
    vars(module).update(parts=first, root=namespace)
    exec(compile("def program(x):\n    return x * 2 - root.parts[0]", "/world/of_its_own.py", "exec"), vars(module))
    yield module.program
    namespace.parts = [torch.full((3,), 1.5), *([1.5] * 3)]
    yield


def tagged(tensor: Tensor) -> Tensor:
    tensor.tag = 3.0  # type: ignore[attr-defined]
    return tensor


@follows()
def test_tensors_without_an_attribute_in_a_list_that_took_the_place_of_another() -> Story:
    state = [tagged(torch.ones(3)), torch.ones(3)]
    holder = Holder(state)

    def use(x: Tensor) -> Tensor:
        for at, tensor in enumerate(holder.value):
            tensor.mul_(0.5).add_(x[0], alpha=at + 1)
        return x * holder.value[0] - getattr(holder.value[0], "tag", 2.0)

    yield use, lambda: holder.value
    holder.value = [tensor.clone() for tensor in state]
    yield


@follows()
def test_a_list_that_took_the_place_of_another_gets_one_tensor_twice() -> Story:
    holder = Holder([torch.ones(3), torch.ones(3) * 2, (torch.ones(3) * 3, torch.ones(3) * 4)])

    def use(x: Tensor) -> Tensor:
        first, second, (third, fourth) = holder.value
        for at, tensor in enumerate((first, second, third, fourth)):
            tensor.mul_(0.5).add_(x[0], alpha=at + 1)
        return x * first - second + third * 2 - fourth * 3

    yield use, lambda: holder.value
    holder.value = [*holder.value]
    yield
    holder.value[0] = holder.value[1]
    yield
    holder.value[0] = torch.ones(3)
    yield
    holder.value[2] = holder.value[2][0], holder.value[2][0]
    yield
    holder.value[2] = torch.ones(3), holder.value[1]
    yield


@follows()
def test_tensors_of_a_list_that_are_replaced_again_and_again() -> Story:
    holder = Holder([torch.ones(3), (torch.ones(3), torch.ones(3))])

    def use(x: Tensor) -> Tensor:
        first, (second, third) = holder.value
        for at, tensor in enumerate((first, second, third)):
            tensor.mul_(0.5).add_(x[0], alpha=at + 1)
        return x * first - second + third * 2

    yield use, lambda: holder.value
    for call in range(5):
        holder.value[0] = torch.ones(3) * call
        yield
    holder.value[1] = (torch.ones(3) * 7, holder.value[1][1])
    yield
    holder.value[0] = holder.value[1][0]
    yield
    holder.value[0] = torch.ones(2, 3)
    yield
