"""What a function keeps for its callers (`functools.lru_cache`) is state of the program: tables, masks, whole models."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same, jit

Decorate = Callable[[Any], Any]
CACHES: dict[str, Decorate] = {
    "cache": functools.cache,
    "with a limit": functools.lru_cache(8),
    "as it comes": functools.lru_cache,
}


def _check(program: Callable[..., Any], change: Callable[[], object], *, recordings: int) -> None:
    """Both do the same before and after a change; `recordings` are made."""
    jitted = jit(program)
    with torch.no_grad():
        for k in range(8):
            if k == 4:
                change()
            x = torch.tensor([k, 2.0, -1.0])
            assert_same(jitted(x), program(x))
    statistics = jitted.statistics()
    assert statistics.recordings == recordings
    assert statistics.replays == 8 - recordings


@pytest.fixture(params=CACHES)
def cached(request: pytest.FixtureRequest) -> Decorate:
    return CACHES[request.param]


def test_a_table_is_read_where_it_lies(cached: Decorate) -> None:
    table = cached(lambda size: torch.arange(size) * 2.0)
    _check(lambda x: x - table(len(x)), lambda: table(3).mul_(3), recordings=1)


def test_a_table_that_the_trace_was_the_first_to_need_is_made_by_a_call(cached: Decorate) -> None:
    table = cached(lambda size: torch.arange(size) * 2.0)
    jitted = jit(lambda x: x - table(len(x)))
    for k in range(4):
        if k == 1:
            table.cache_clear()  # before the trace
        assert_same(jitted(torch.full((3,), float(k))), k - torch.arange(3) * 2.0)
    assert jitted.statistics().recordings == 1


def test_a_table_that_was_made_again_is_another_one(cached: Decorate) -> None:
    scales = [2.0]
    table = cached(lambda size: torch.arange(size) * scales[0])

    def change() -> None:
        scales[0] = 5.0
        table.cache_clear()

    _check(lambda x: x - table(len(x)), change, recordings=2)


def test_what_a_cached_container_holds_is_found(cached: Decorate) -> None:
    @cached
    def rotations(size: int, kind: str) -> dict[str, Any]:
        return {"cos": torch.arange(size).cos(), "others": (torch.arange(size).sin(), [torch.ones(size) * 3])}

    def turned(x: torch.Tensor) -> torch.Tensor:
        found = rotations(len(x), kind="full")
        return x * found["cos"] - found["others"][0] * found["others"][1][0]

    _check(turned, lambda: rotations(3, kind="full")["others"][1][0].sub_(5), recordings=1)
    _check(turned, lambda: rotations(3, kind="full").update(cos=torch.full((3,), 7.0)), recordings=2)


def test_a_cached_model_is_guarded(cached: Decorate) -> None:
    @cached
    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3, affine=False))

    def scored(x: torch.Tensor) -> torch.Tensor:
        return model()(x.expand(2, 3) * torch.tensor([[1.0], [2.0]])) - x

    _check(scored, lambda: model()[0].weight.data.mul_(-2), recordings=1)
    _check(scored, lambda: model().eval(), recordings=2)


def test_the_cache_of_a_method_is_found_at_its_class(cached: Decorate) -> None:
    class Attention:
        def __init__(self) -> None:
            self.scale = 3.0

        @cached
        def mask(self, size: int) -> torch.Tensor:
            return torch.arange(size) * self.scale

        def score(self, x: torch.Tensor) -> torch.Tensor:
            return x - self.mask(len(x))

    attention = Attention()
    _check(attention.score, lambda: setattr(attention, "scale", 9.0), recordings=1)  # which the cache does not know
    _check(attention.score, Attention.mask.cache_clear, recordings=2)


def test_parametrizations_that_are_cached_for_a_block_stay_real() -> None:
    """A trace left its tensors in torch's table, and the call that ran instead of it failed on them."""
    parametrize = torch.nn.utils.parametrize

    class Symmetric(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight.triu() - weight.triu(1).mT

    layer = torch.nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    jitted = jit(layer, on_refusal="eager")
    for k in range(4):
        x = torch.full((2, 3), float(k))
        with parametrize.cached():
            out = jitted(x)
            assert_same(out.detach(), layer(x).detach())


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept["list"].__setitem__(0, torch.full((3,), 7.0)),
        lambda kept: kept["inner"].update(scale=5.0),
        lambda kept: kept["empty"].update(more=1),
        lambda kept: kept.update(added=1),
    ],
    ids=["an element", "an entry below", "an empty one is filled", "an entry more"],
)
def test_all_of_a_cached_container_counts(change: Callable[[dict[str, Any]], object], cached: Decorate) -> None:
    """A dictionary that a cache with a limit keeps was taken for the cache's own, whose entries may grow."""

    @cached
    def parts(size: int) -> dict[str, Any]:
        return {"list": [torch.arange(size) * 2.0], "inner": {"scale": 3.0}, "empty": {}}

    def program(x: torch.Tensor) -> torch.Tensor:
        kept = parts(len(x))
        return x * kept["inner"]["scale"] - kept["list"][0] + len(kept) * 2 + len(kept["empty"])

    jitted = jit(program)
    for k in range(8):
        if k == 4:
            change(parts(3))
        x = torch.full((3,), float(k))
        assert_same(jitted(x), program(x))
    assert jitted.statistics().replays >= 5


@pytest.mark.filterwarnings("ignore:treeplay runs")
@pytest.mark.parametrize("is_filled", [False, True], ids=["as it goes", "before"])
@pytest.mark.parametrize("gives", [lambda t: t.clone() * 2, lambda t: float(t[0]) * 2], ids=["tensors", "numbers"])
def test_an_argument_that_is_a_key_counts_as_itself(
    gives: Callable[[Any], Any], is_filled: bool, cached: Decorate
) -> None:
    """Any tensor of its description was given the result of the one that was recorded."""
    drawn = [torch.tensor([value, value - 3]) for value in (1.0, 4.0, 6.0)]
    doubled, twin = cached(gives), cached(gives)
    if is_filled:
        for x in drawn:
            doubled(x), twin(x)
    jitted = jit(lambda x: x - doubled(x), on_refusal="eager")
    for k in (0, 0, 0, 1, 1, 2, 0, 1, 0):
        if k == 2:
            drawn[0].sub_(7)  # which the cache does not know
        assert_same(jitted(drawn[k]), drawn[k] - twin(drawn[k]))


def test_an_object_that_is_a_key_counts_as_itself(cached: Decorate) -> None:
    class Config:
        def __init__(self, scale: float) -> None:
            self.scale = scale

    scaled = cached(lambda config: torch.arange(3) * config.scale)
    twin = cached(scaled.__wrapped__)
    jitted = jit(lambda x, config: x - scaled(config))
    configs = [Config(2.0), Config(5.0)]
    for k in (0, 0, 0, 1, 1, 0, 1, 1):
        x = torch.full((3,), float(k))
        assert_same(jitted(x, configs[k]), x - twin(configs[k]))


@pytest.mark.filterwarnings("ignore:treeplay runs")
@pytest.mark.parametrize("is_filled", [False, True], ids=["empty", "filled"])
def test_a_call_that_raised_tells_nothing_of_the_next(is_filled: bool, cached: Decorate) -> None:
    """It leaves no entry, so no guard told of one that somebody else made later."""
    state = {"is bad": not is_filled, "value": 3.0}

    @cached
    def value(n: int) -> float:
        if state["is bad"]:
            raise KeyError(n)
        return state["value"]

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * value(1) - 1
        except KeyError:
            return x - 2

    if is_filled:
        value(77)
        state["is bad"] = True
    jitted = jit(program, on_refusal="eager")
    for k in range(8):
        if k == 5:
            state["is bad"] = False
            value(1)
            state["is bad"] = True
        assert_same(jitted(torch.full((3,), float(k))), torch.full((3,), k * 3.0 - 1 if k >= 5 else k - 2.0))


def test_what_a_cached_function_does_besides_is_done_once(cached: Decorate) -> None:
    """A trace that missed left the entry and took back the rest, and each replay did it once more."""
    found = []
    for make in (jit, lambda program: program):
        registry = {"n": 0}

        @cached
        def number(name: str, registry: dict[str, int] = registry) -> int:
            registry["n"] += 1
            return registry["n"]

        called = make(lambda x, number=number: x * number("a") - 1)
        for k in range(8):
            if k in (1, 5):
                number.cache_clear()
            found.append((called(torch.full((3,), float(k))).tolist(), registry["n"]))
    assert found[:8] == found[8:]


ASKED: dict[str, tuple[str, Callable[[Any], Callable[[], Any]]]] = {
    "cleared": ("cache_clear", lambda function: function.cache_clear),
    "cleared by a computed name": ("cache_clear", lambda function: lambda: getattr(function, "cache_" + "clear")()),
    "counted": ("cache_info", lambda function: lambda: function.cache_info()),
    "counted by another name": ("cache_info", lambda function: function.cache_info),
}


@pytest.mark.parametrize("how", ASKED)
def test_a_program_that_asks_the_cache_itself_is_refused(how: str, cached: Decorate) -> None:
    op, make = ASKED[how]
    doubled = cached(lambda n: n * 2.0)
    ask = make(doubled)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * doubled(3)
        ask()
        return y - 1

    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    jitted(torch.ones(3))
    doubled(3)
    with pytest.raises(treeplay.Refusal) as caught:
        jitted(torch.ones(3))
    assert caught.value.op == op


def test_a_program_that_empties_the_cache_by_c_code_is_not_replayed(cached: Decorate) -> None:
    scales = [2.0]
    scaled = cached(lambda n: n * scales[0])
    empty = operator.methodcaller("cache_clear")

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * scaled(3) - 1
        empty(scaled)
        return y

    jitted = jit(program)
    for k in range(6):
        if k == 4:
            scales[0] = 5.0
            scaled(3)
            scales[0] = 2.0
        assert_same(jitted(torch.full((3,), float(k))), torch.full((3,), k * (15.0 if k == 4 else 6.0) - 1))


def test_a_number_for_which_the_cache_lacks_a_result_is_no_reason_to_give_up(cached: Decorate) -> None:
    scale = cached(lambda n: n**-0.5)
    program = jit(lambda x, n: x * scale(n), on_refusal="eager")
    for n in (1, 2, 3, 3, 3, 3, 2, 2):
        x = torch.arange(3.0)
        assert_same(program(x, n), x * n**-0.5)
    assert program.statistics().replays >= 3 and program.statistics().refusals == 0
