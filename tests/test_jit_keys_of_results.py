"""What a program returns or stores holds the arguments of this call and the state of today, also as keys and within values."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import treeplay
from support import assert_same, jit

KEPT = []


class Batch:
    def __init__(self) -> None:
        self.t = torch.arange(3.0)

    def scaled(self) -> Tensor:
        return self.t * 2


@dataclass(eq=False)
class Config:
    step: int = 1

    def scaled(self) -> int:
        return self.step * 2


class Store:
    value: Any = None
    table: dict[Any, Any]

    def __init__(self) -> None:
        self.table = {}


# Each with what finds the argument again.
HOLDING: dict[str, tuple[Callable[[Tensor, Any], Any], Callable[[Any], Any]]] = {
    "key": (lambda x, a: {a: x * 2 - 1}, lambda r: next(iter(r))),
    "key of a default dict": (lambda x, a: defaultdict(int, {a: x * 2 - 1}), lambda r: next(iter(r))),
    "key of an ordered dict": (lambda x, a: OrderedDict({a: x * 2 - 1}), lambda r: next(iter(r))),
    "key within a tuple": (lambda x, a: {(1, (a, 2)): x * 2 - 1}, lambda r: next(iter(r))[1][0]),
    "key further in": (lambda x, a: [{"a": {a: x * 2 - 1}}], lambda r: next(iter(r[0]["a"]))),
    "key without tensors": (lambda x, a: ({a: 1}, x * 2 - 1), lambda r: next(iter(r[0]))),
    "frozenset": (lambda x, a: (frozenset([a]), x * 2 - 1), lambda r: next(iter(r[0]))),
    "slice": (lambda x, a: (slice(a, 1), x * 2 - 1), lambda r: r[0].start),
    "method": (lambda x, a: (a.scaled, x * 2 - 1), lambda r: r[0].__self__),
}
TENSOR_HOLDING = {name: HOLDING[name] for name in ("key", "key within a tuple", "key without tensors")}


def follows_arguments(program: Callable[..., Any], make: Callable[[], Any], find: Callable[[Any], Any]) -> Any:
    """The statistics of a program in whose results, or what it stores, each call finds its own argument."""
    jitted = jit(program, on_refusal="eager")
    for call in range(8):
        given, x = make(), torch.arange(3.0) + call
        KEPT.append(given)
        assert find(jitted(x, given)) is given, f"call {call}: {jitted.explain()}"
    return jitted.statistics()


@pytest.mark.parametrize("make", [Batch, Config], ids=["batch", "dataclass"])
@pytest.mark.parametrize(("program", "find"), HOLDING.values(), ids=HOLDING)
def test_an_argument_within_a_result(program: Any, find: Any, make: Any) -> None:
    follows_arguments(program, make, find)


@pytest.mark.parametrize("make", [Batch, Config], ids=["batch", "dataclass"])
@pytest.mark.parametrize(("program", "find"), HOLDING.values(), ids=HOLDING)
def test_an_argument_within_what_is_stored(program: Any, find: Any, make: Any) -> None:
    store = Store()

    def storing(x: Tensor, given: Any) -> Tensor:
        store.value = program(x, given)
        return x - 1

    follows_arguments(storing, make, lambda _: find(store.value))


@pytest.mark.parametrize(("program", "find"), TENSOR_HOLDING.values(), ids=TENSOR_HOLDING)
def test_a_tensor_that_is_an_argument_within_a_result(program: Any, find: Any) -> None:
    follows_arguments(program, lambda: torch.arange(3.0), find)


def test_an_argument_as_a_key_of_what_is_put_on_it() -> None:
    def program(x: Tensor, given: Any) -> Any:
        given.own = {given: x * 2 - 1}
        return given

    follows_arguments(program, Batch, lambda given: next(iter(given.own)))


@pytest.mark.parametrize("make", [Batch, Config, lambda: torch.arange(3.0)], ids=["batch", "dataclass", "tensor"])
def test_an_argument_as_a_key_of_a_dictionary_that_is_there(make: Any) -> None:
    store = Store()

    def program(x: Tensor, given: Any) -> Tensor:
        store.table.clear()
        store.table[given] = x * 2 - 1
        return x - 1

    follows_arguments(program, make, lambda _: next(iter(store.table)))


def test_the_refusal_names_the_place_and_says_what_to_do() -> None:
    store = Store()

    def program(x: Tensor, given: Config) -> Tensor:
        store.value = {given: x * 2}
        return x - 1

    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    jitted(torch.arange(3.0), Config())
    with pytest.raises(treeplay.Refusal, match=r"value: a Config is a key of what is returned") as raised:
        jitted(torch.arange(3.0), Config())
    assert "list of pairs" in str(raised.value)
    assert raised.value.where is not None and raised.value.where.line == program.__code__.co_firstlineno + 1


def test_a_tensor_that_the_program_makes_is_no_key() -> None:
    jitted = jit(lambda x: {x * 2: 1}, on_refusal="eager")
    for call in range(4):
        x = torch.arange(3.0) + call
        assert_same(next(iter(jitted(x))), x * 2)
    assert jitted.statistics().refusals == 1


@pytest.mark.parametrize("lower", ["aten", "capture"])
@pytest.mark.parametrize("within", [False, True], ids=["key", "within a tuple"])
def test_a_tensor_of_the_state_as_a_key(within: bool, lower: str) -> None:
    store = Store()
    store.value = torch.arange(3.0)
    jitted = jit(lambda x: {((store.value, 1) if within else store.value): x * 2 - 1}, lower=lower)
    for call in range(10):
        if call == 5:
            store.value = torch.arange(3.0) + 9
        x = torch.arange(3.0) + call
        ((key, value),) = jitted(x).items()
        assert (key[0] if within else key) is store.value
        assert_same(value, x * 2 - 1)
    assert jitted.statistics().replays >= 6


def test_a_parameter_as_a_key_where_the_caller_differentiates() -> None:
    model = torch.nn.Linear(3, 2)
    jitted = jit(lambda x: {model.weight: (x @ model.weight.t()).sum() - 1})
    for call in range(10):
        if call == 5:
            model.weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
        x = torch.arange(3.0) + call
        ((key, value),) = jitted(x).items()
        assert key is model.weight
        assert_same(value, (x @ model.weight.t()).sum() - 1)
    assert jitted.statistics().replays >= 6


def test_objects_of_the_state_and_constants_are_keys() -> None:
    model = torch.nn.Linear(3, 2)
    jitted = jit(lambda x: {model: x - 1, torch.float32: x * 2, (1, "a"): x * 3})
    for call in range(4):
        x = torch.arange(3.0) + call
        assert_same([*jitted(x).values()], [x - 1, x * 2, x * 3])
        assert next(iter(jitted(x))) is model
    assert jitted.statistics().replays >= 5
