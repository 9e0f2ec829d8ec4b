"""Containers whose contents change between calls: lists of any length, sets, deques, arrays, queues, and the user's own."""

from __future__ import annotations

import collections
import queue
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

import treeplay
from support.follows import Holder, Story, folded, follows

Tensor = torch.Tensor


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


@follows()
@pytest.mark.parametrize("others", [0, 2])
def test_a_weak_reference_to_what_a_guarded_list_held(others: int) -> Story:
    nodes = [Node(2.0), *(Node(3.0) for _ in range(others))]
    reference = weakref.ref(nodes[0])

    def program(x: Tensor) -> Tensor:
        node = reference()
        return x * len(nodes) - (1.0 if node is None else node.gain)

    yield program
    nodes.pop(0)
    yield


def test_what_two_recordings_hold_is_gone_for_a_weak_reference():
    nodes = [Node(2.0), Node(3.0)]
    options = {"nodes": nodes}
    reference = weakref.ref(nodes[0])

    @treeplay.jit(lower="aten", on_refusal="raise")
    def program(x: Tensor) -> Tensor:
        gain = sum(node.gain for node in nodes) * options.get("scale", 1.0)
        return x * gain - (1.0 if reference() is None else 2.0)

    x = torch.ones(2)
    assert [program(x)[0].item() for _ in range(3)] == [3.0, 3.0, 3.0]
    options["scale"] = 2.0
    assert [program(x)[0].item() for _ in range(3)] == [8.0, 8.0, 8.0]
    nodes.pop(0)
    assert [program(x)[0].item() for _ in range(3)] == [5.0, 5.0, 5.0]


@follows()
def test_a_weak_reference_to_what_an_object_in_a_guarded_list_held() -> Story:
    """Both the object and what holds it are guarded, and are gone together."""
    holders = [Holder(Holder(Node(2.0))), Holder(Holder(Node(3.0)))]
    reference = weakref.ref(holders[0].value.value)

    def program(x: Tensor) -> Tensor:
        node = reference()
        return x * sum(each.value.value.gain for each in holders) - (1.0 if node is None else node.gain)

    yield program
    holders.pop(0)
    yield


@follows()
def test_a_new_weak_reference_to_what_a_guarded_list_held() -> Story:
    nodes = [Node(2.0), Node(3.0)]
    holder = Holder(weakref.ref(nodes[0]))
    yield lambda x: x * len(nodes) - (1.0 if holder.value() is None else 2.0)
    holder.value = weakref.ref(nodes[1])
    nodes.pop(1)
    yield
