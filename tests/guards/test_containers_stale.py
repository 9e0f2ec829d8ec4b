"""Containers whose contents change between calls: lists of any length, sets, deques, arrays, queues, and the user's own."""

from __future__ import annotations

import array
import collections
import queue
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from support.follows import Story, follows

Tensor = torch.Tensor


def folded(x: Tensor, values: Any) -> Tensor:
    """All the numbers in turn; their order matters."""
    for value in values:
        x = x * float(value) - 1
    return x


class Point(NamedTuple):
    gain: Any
    parts: Any


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


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


SETS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "membership": lambda s, x: x * 2 if "gelu" in s else x - 1,
    "length": lambda s, x: x * len(s) - 1,
    "iteration": lambda s, x: folded(x, sorted(len(item) for item in s)),
    "operators": lambda s, x: x * len(s & {"gelu", "relu"}) - len(s - {"relu"}),
    "subset": lambda s, x: x * 2 if s <= {"relu", "tanh"} else x - 1,
    "truth": lambda s, x: x * 2 if s else x - 1,
    "isdisjoint": lambda s, x: x * 2 if s.isdisjoint({"gelu"}) else x - 1,
}


@pytest.mark.parametrize("read", SETS.values(), ids=SETS)
@pytest.mark.parametrize("make", [set, frozenset])
@follows()
def test_a_set(read: Callable[[Any, Tensor], Tensor], make: Any) -> Story:
    holder = Holder(make({"relu"}))

    def put(*items: str) -> None:
        if make is set:
            holder.value.clear()
            holder.value.update(items)
        else:
            holder.value = make(items)

    yield lambda x: read(holder.value, x)
    put("relu", "gelu")
    yield
    put()
    yield
    put("gelu")
    yield


@follows()
def test_a_set_of_objects() -> Story:
    first, second = Holder(2.0), Holder(3.0)
    chosen = {first}

    def use(x: Tensor) -> Tensor:
        for holder in (first, second):
            x = x * holder.value if holder in chosen else x - 1
        return x

    yield use
    chosen.add(second)
    yield
    second.value = 5.0
    yield
    chosen.remove(first)
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


MAPPINGS: dict[str, Callable[[dict[str, float]], Any]] = {
    "UserDict": collections.UserDict,
    "ChainMap": lambda d: collections.ChainMap({}, d),
    "Counter": collections.Counter,
    "proxy": lambda d: d,
    "OrderedDict": collections.OrderedDict,
}


@pytest.mark.parametrize("make", MAPPINGS.values(), ids=MAPPINGS)
@pytest.mark.parametrize(
    "read",
    [
        lambda d, x: x * d["ga" + "in"] - 1,
        lambda d, x: folded(x, d.values()),
        lambda d, x: folded(x, (value for _, value in sorted(d.items()))),
        lambda d, x: x * d.get("gain", 1.0) - len(d),
        lambda d, x: x * 2 if "bias" in d else x - 1,
    ],
    ids=["item", "values", "items", "get", "membership"],
)
@follows()
def test_a_mapping(read: Callable[[Any, Tensor], Tensor], make: Any) -> Story:
    settings = make({"gain": 2.0})
    shown = types.MappingProxyType(settings) if type(settings) is dict else settings
    yield lambda x: read(shown, x)
    settings["gain"] = 3.0
    yield
    settings["bias"] = 4.0
    yield


@follows()
def test_a_map_below_in_a_chain_of_maps() -> Story:
    above: dict[str, float] = {}
    below = {"gain": 2.0}
    chain = collections.ChainMap(above, below)
    yield lambda x: x * chain["gain"] - 1
    below["gain"] = 3.0
    yield
    above["gain"] = 5.0
    yield
    chain.maps.insert(0, {"gain": 7.0})
    yield


class Rates(Mapping[str, float]):
    def __init__(self) -> None:
        self.names, self.numbers = ["gain"], [2.0]

    def __getitem__(self, name: str) -> float:
        if name not in self.names:
            raise KeyError(name)
        return self.numbers[self.names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class Steps(Sequence[float]):
    def __init__(self) -> None:
        self.first, self.count = 1.0, 3

    def __getitem__(self, index: Any) -> Any:
        if index >= self.count:
            raise IndexError(index)
        return self.first + index

    def __len__(self) -> int:
        return self.count


@follows()
def test_a_mapping_of_ones_own() -> Story:
    rates = Rates()
    yield lambda x: folded(x, rates.values()) * 2 - len(rates) + ("bias" in rates)
    rates.numbers[0] = 3.0
    yield
    rates.names.append("bias")
    rates.numbers.append(5.0)
    yield


@follows()
def test_a_sequence_of_ones_own() -> Story:
    steps = Steps()
    yield lambda x: folded(x, steps) * 2 - len(steps) + (3.0 in steps)
    steps.first = 2.0
    yield
    steps.count = 2
    yield


@pytest.mark.parametrize("kind", [queue.Queue, queue.LifoQueue, queue.PriorityQueue])
@follows(may_refuse=True)
def test_a_queue_that_is_looked_into(kind: Any) -> Story:
    waiting = kind()
    waiting.put(2.0)
    yield lambda x: x * waiting.queue[0] - waiting.qsize() + (3 if waiting.empty() else 0)
    waiting.put(1.0)
    yield
    waiting.get()
    yield


class Node:
    def __init__(self, gain: float) -> None:
        self.gain = gain


@follows()
def test_a_weak_reference() -> Story:
    nodes = [Node(2.0), Node(3.0)]
    holder = Holder(weakref.ref(nodes[0]))

    def use(x: Tensor) -> Tensor:
        node = holder.value()
        return x - 1 if node is None else x * node.gain

    yield use
    nodes[0].gain = 5.0
    yield
    holder.value = weakref.ref(nodes[1])
    yield
    nodes.clear()
    yield


@follows()
def test_weak_dicts_and_sets() -> Story:
    nodes = [Node(2.0), Node(3.0)]
    by_node = weakref.WeakKeyDictionary({nodes[0]: 4.0})
    by_name = weakref.WeakValueDictionary({"a": nodes[0]})
    alive = weakref.WeakSet(nodes[:1])

    def use(x: Tensor) -> Tensor:
        x = x * by_node.get(nodes[0], 1.0) - len(by_name)
        found = by_name.get("b")
        return x - len(alive) if found is None else x * found.gain

    yield use
    by_node[nodes[0]] = 6.0
    yield
    by_name["b"] = nodes[1]
    yield
    alive.add(nodes[1])
    nodes[1].gain = 7.0
    yield
