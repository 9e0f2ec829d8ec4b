"""What may be jitted and how it may be called: callables, methods, nested arguments, keys."""

from __future__ import annotations

import collections
import copy
import functools
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same, jit


def scaled(x: torch.Tensor, by: Any = 2, *, less: float = 1.0) -> torch.Tensor:
    return x * by - less


class Scaler:
    def __init__(self, by: float) -> None:
        self.by = torch.tensor(by)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by - 1

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by - 2


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (scaled, lambda x: x * 2 - 1.0),
        (lambda x: x * 3 - 1, lambda x: x * 3 - 1),
        (Scaler(4.0), lambda x: x * 4 - 1),
        (Scaler(5.0).apply, lambda x: x * 5 - 2),
        (functools.partial(scaled, by=6, less=3.0), lambda x: x * 6 - 3),
        (functools.partial(scaled, by=torch.tensor(7.0)), lambda x: x * 7 - 1),
        (torch.sin, torch.sin),
        (nn.Identity(), lambda x: x),
        (functools.wraps(scaled)(lambda x: scaled(x)), lambda x: x * 2 - 1),
    ],
)
def test_any_callable_can_be_jitted(program: Any, expected: Any) -> None:
    jitted = jit(program)
    for _ in range(4):
        x = torch.randn(3)
        assert_same(jitted(x), expected(x))


def test_the_decorator_works_with_and_without_options() -> None:
    @treeplay.jit
    def plain(x: torch.Tensor) -> torch.Tensor:
        """Doubles."""
        return x * 2

    @treeplay.jit(lower="aten", on_refusal="raise")
    def with_options(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    assert (plain.__name__, plain.__doc__) == ("plain", "Doubles.")
    assert "plain" in repr(plain)
    for _ in range(3):
        assert_same(with_options(torch.ones(2)), torch.full((2,), 3.0))


class Counter:
    def __init__(self, start: float) -> None:
        self.total = torch.tensor([start])

    @treeplay.jit(lower="aten", on_refusal="raise")
    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.total.mul_(2).add_(x)
        return self.total - x


def test_a_jitted_method_has_recordings_for_each_instance() -> None:
    counters, totals = [Counter(1.0), Counter(5.0)], [1.0, 5.0]
    for call in range(8):
        which = call % 2
        totals[which] = totals[which] * 2 + call
        x = torch.tensor([float(call)])
        assert_same(counters[which].add(x), torch.tensor([totals[which]]) - x)
    assert [counter.add.statistics().replays for counter in counters] == [3, 3]


def test_an_object_with_a_jitted_method_can_be_copied_and_pickled() -> None:
    counter = Counter(1.0)
    for _ in range(3):
        counter.add(torch.ones(1))
    for twin in (copy.deepcopy(counter), pickle.loads(pickle.dumps(counter))):
        before = counter.total.clone()
        for _ in range(3):
            twin.add(torch.ones(1))
        assert_same(counter.total, before)
        assert not torch.equal(twin.total, before) and twin.add is not counter.add


@treeplay.jit(lower="aten", on_refusal="raise")
def at_the_top(x: torch.Tensor) -> torch.Tensor:
    return x * 2 - 1


def test_a_decorated_function_can_be_pickled_and_copied() -> None:
    assert pickle.loads(pickle.dumps(at_the_top)) is at_the_top
    assert_same(copy.deepcopy(at_the_top)(torch.ones(2)), torch.ones(2))


def test_a_method_of_an_object_without_dict_is_refused_with_the_cure() -> None:
    class Slotted:
        __slots__ = ()

        @treeplay.jit
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(treeplay.ArgumentTypeError, match="jit the bound method"):
        Slotted().run(torch.ones(1))


@dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    scale: float = 2.0


Pair = collections.namedtuple("Pair", ["first", "second"])


def test_arguments_may_be_nested() -> None:
    def use(batch: Batch, pair: Pair, *rest: Any, table: dict[Any, Any]) -> torch.Tensor:
        return batch.x * batch.scale - pair.first / pair.second[0] + rest[0][1] * table["a"][1]["b"] - table[3]

    jitted = jit(use)
    for _ in range(5):
        a, b, c, d, e = (torch.rand(2) + 1 for _ in range(5))
        args = (Batch(a), Pair(b, [c]), ("text", d))
        table = {"a": (None, {"b": e}), 3: 4}
        assert_same(jitted(*args, table=table), use(*args, table=table))
    assert jitted.statistics().replays == 4


def test_the_order_of_a_dict_is_part_of_the_call() -> None:
    def use(parts: dict[str, torch.Tensor]) -> torch.Tensor:
        first, second = parts.values()
        return first - 2 * second

    jitted = jit(use)
    a, b = torch.randn(3), torch.randn(3)
    for _ in range(4):
        assert_same(jitted({"a": a, "b": b}), a - 2 * b)
        assert_same(jitted({"b": b, "a": a}), b - 2 * a)


def test_the_order_of_keywords_is_part_of_the_call() -> None:
    def use(**parts: torch.Tensor) -> torch.Tensor:
        first, second = parts.values()
        return first - 2 * second

    jitted = jit(use)
    a, b = torch.randn(3), torch.randn(3)
    for _ in range(4):
        assert_same(jitted(a=a, b=b), a - 2 * b)
    for _ in range(4):
        assert_same(jitted(b=b, a=a), b - 2 * a)


@pytest.mark.parametrize("values", [(2, 3), (2.0, 2), (True, 1), ("a", "b"), (None, 0), ((1, 2), (2, 1)), (0.0, -0.0)])
def test_python_values_are_part_of_the_key(values: tuple[Any, Any]) -> None:
    def use(x: torch.Tensor, value: Any) -> tuple[torch.Tensor, str]:
        by = value if isinstance(value, (int, float)) else 7.0
        return x * by, repr(value)

    jitted = jit(use)
    for value in values * 4:
        x = torch.ones(2)
        assert_same(jitted(x, value), use(x, value))
    assert jitted.statistics().recordings == 2


def test_nan_is_a_value_like_any_other() -> None:
    jitted = jit(lambda x, value: x * value)
    for _ in range(20):
        assert jitted(torch.ones(2), float("nan")).isnan().all()
    assert jitted.statistics().recordings <= 2


VARIANTS = {
    "shape": torch.ones(2, 4),
    "stride": torch.ones(3, 2).t(),
    "dtype": torch.ones(2, 3, dtype=torch.float64),
    "requires_grad": torch.ones(2, 3, requires_grad=True),
    "dimensions": torch.ones(6),
}


@pytest.mark.parametrize("what", VARIANTS)
def test_the_layout_of_a_tensor_is_part_of_the_key(what: str) -> None:
    jitted = jit(lambda x: (x.detach() * 2 - 1, x.requires_grad))
    for x in (torch.ones(2, 3), VARIANTS[what]) * 4:
        found, wants = jitted(x)
        assert_same(found, x.detach() * 2 - 1)
        assert wants == x.requires_grad
    assert jitted.statistics().recordings == 2


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1), (2, 0, 3)])
def test_unusual_shapes_are_replayed(shape: tuple[int, ...]) -> None:
    jitted = jit(lambda x: (x * 2 - 1, x.sum(), x.t() if x.dim() == 2 else x))
    for _ in range(4):
        x = torch.randn(shape)
        assert_same(jitted(x), (x * 2 - 1, x.sum(), x.t() if x.dim() == 2 else x))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.complex64]
)
def test_all_dtypes_are_replayed(dtype: torch.dtype) -> None:
    jitted = jit(lambda x: (x * 2 + 1, x.sum(), x == x[0]))
    for _ in range(4):
        x = torch.randint(0, 2, (5,)).to(dtype)
        assert_same(jitted(x), (x * 2 + 1, x.sum(), x == x[0]))


def test_defaults_and_keywords_are_keyed_as_they_are_given() -> None:
    jitted = jit(scaled)
    for _ in range(3):
        x = torch.randn(2)
        assert_same(jitted(x), x * 2 - 1)
        assert_same(jitted(x, 3), x * 3 - 1)
        assert_same(jitted(x, by=3), x * 3 - 1)
        assert_same(jitted(x=x, less=5.0), x * 2 - 5)
        assert_same(jitted(x, torch.tensor(4.0)), x * 4 - 1)


def test_a_wrong_call_raises_what_eager_raises() -> None:
    jitted = jit(scaled)
    for _ in range(3):
        jitted(torch.ones(2))
        with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
            jitted(torch.ones(2), nonsense=3)
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            jitted()


def test_every_call_is_eager_or_a_replay() -> None:
    jitted = jit(lambda x: x * 2)
    for size in (2, 2, 3, 3, 2, 4, 3, 2):
        jitted(torch.ones(size))
    statistics = jitted.statistics()
    assert (statistics.calls, statistics.eager_calls, statistics.replays) == (8, 3, 5)
    assert statistics.recordings == 2 and len(statistics.keys) == 3


def test_statistics_count_on_over_a_reset() -> None:
    jitted = jit(lambda x: x * 2)
    for _ in range(5):
        jitted(torch.ones(2))
    jitted.reset()
    jitted(torch.ones(2))
    statistics = jitted.statistics()
    assert (statistics.calls, statistics.replays, statistics.eager_calls) == (6, 4, 2)


def test_an_explanation_names_keys_recordings_and_causes() -> None:
    holder = {"weight": torch.ones(2)}
    jitted = jit(lambda x: x * holder["weight"])
    for _ in range(3):
        jitted(torch.ones(2))
    holder["weight"] = torch.ones(2, dtype=torch.float64)
    jitted(torch.ones(2))
    text = jitted.explain()
    assert "4 calls = 2 replayed + 2 observed" in text
    assert "args[0]=float32[2]" in text and "inference, aten" in text
    assert "recorded anew" in text and "dtype torch.float64, recorded with torch.float32" in text


def test_the_call_function_can_be_read() -> None:
    jitted = jit(lambda x: x * 2)
    for _ in range(2):
        jitted(torch.ones(2))
    assert jitted.sources()[0].startswith("def replay(args, kwargs):")


def test_ordered_dicts_come_and_go_as_such() -> None:
    def swap(parts: OrderedDict[str, torch.Tensor]) -> OrderedDict[str, torch.Tensor]:
        first, second = parts.values()
        return OrderedDict(difference=first - 2 * second, first=first)

    jitted = jit(swap)
    for _ in range(4):
        parts = OrderedDict(a=torch.randn(2), b=torch.randn(2))
        found = jitted(parts)
        assert type(found) is OrderedDict
        assert list(found) == ["difference", "first"]
        assert found["first"] is parts["a"]
        assert_same(found["difference"], parts["a"] - 2 * parts["b"])
    assert jitted.statistics().replays == 3


@pytest.mark.parametrize("lower", ["aten", "inductor"])
def test_a_strided_view_begins_where_the_argument_of_the_day_does(lower: str) -> None:
    base = torch.arange(40.0)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2, 2), (1, 1)) * 2 - x[:2]

    replayed = jit(program, lower=lower)
    for start in (0, 0, 0, 5, 7, 0):
        assert torch.equal(replayed(base[start : start + 6]), program(base[start : start + 6]))
    assert replayed.statistics().replays >= 4
