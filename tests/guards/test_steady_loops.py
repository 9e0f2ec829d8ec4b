"""In a loop that is steady, guards hold by their quick check: nothing is compared slowly, and state is found once."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support import assert_same, jit
from treeplay.guards.check.guards import Guards

pytestmark = pytest.mark.programs

_WARM = 12  # calls after which a loop is steady: entries that keep changing are compared one by one by then


def comparisons(monkeypatch: pytest.MonkeyPatch) -> list[Guards]:
    """Grows with each slow comparison."""
    made: list[Guards] = []
    slow = Guards.first_difference

    def first_difference(self: Guards) -> Any:
        made.append(self)
        return slow(self)

    monkeypatch.setattr(Guards, "first_difference", first_difference)
    return made


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 2))


def infers() -> Callable[..., Any]:
    model = network().eval()
    return lambda x: model(x) * 2 - 1


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def trains(make: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[[], Callable[..., Any]]:
    def program() -> Callable[..., Any]:
        model = network()
        return step_of(model, make(model.parameters(), **options))

    return program


def trains_by_a_schedule() -> Callable[..., Any]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).pow(2).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    step.after = schedule.step  # type: ignore[attr-defined]
    return step


class Keeper:
    """A program with state of its own, in each kind of place."""

    def __init__(self) -> None:
        self.count, self.state, self.last = 0, torch.zeros(3, 4), torch.ones(3, 4)
        self.counts, self.listed = {"calls": 0}, [0, torch.zeros(3, 4)]
        self.by_name, self.in_order = Counter(calls=0), OrderedDict(calls=0, others=1)
        self.pair = (torch.zeros(3, 4), torch.ones(3, 4))
        self.frames = deque([torch.zeros(3, 4), torch.ones(3, 4)], maxlen=2)


def counts(keeper: Keeper, x: Tensor) -> Tensor:
    keeper.count += 1
    return x * 2 - keeper.count


def counts_in_containers(keeper: Keeper, x: Tensor) -> Tensor:
    keeper.counts["calls"] += 2
    keeper.listed[0] += 1
    return x * keeper.counts["calls"] - keeper.listed[0]


def counts_by_name(keeper: Keeper, x: Tensor) -> Tensor:
    keeper.by_name["calls"] += 1
    keeper.in_order["calls"] += 2
    return x * keeper.by_name["calls"] - keeper.in_order["calls"]


def keeps_tensors(keeper: Keeper, x: Tensor) -> Tensor:
    keeper.state, keeper.last = keeper.state * 0.5 - x, keeper.state
    keeper.listed[1] = keeper.last - 1
    return keeper.state - keeper.listed[1]


def keeps_a_pair(keeper: Keeper, x: Tensor) -> Tensor:
    state, memory = keeper.pair
    keeper.pair = (state * 0.5 - x, memory * 2 + state)
    return keeper.pair[0] - memory


def keeps_a_window(keeper: Keeper, x: Tensor) -> Tensor:
    keeper.frames.append(x * 2)
    return keeper.frames[0] - keeper.frames[1]


def keeping(program: Callable[[Keeper, Tensor], Tensor]) -> Callable[[], Callable[..., Any]]:
    return lambda: partial(program, Keeper())


PROGRAMS: dict[str, Callable[[], Callable[..., Any]]] = {
    "inference": infers,
    "SGD": trains(torch.optim.SGD, lr=0.1),
    "momentum": trains(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adam": trains(torch.optim.Adam),
    "AdamW": trains(torch.optim.AdamW),
    "foreach": trains(torch.optim.AdamW, foreach=True),
    "RMSprop": trains(torch.optim.RMSprop),
    "NAdam": trains(torch.optim.NAdam),
    "schedule": trains_by_a_schedule,
    "a count": keeping(counts),
    "counts in containers": keeping(counts_in_containers),
    "counts by name": keeping(counts_by_name),
    "tensors that are stored": keeping(keeps_tensors),
    "a pair": keeping(keeps_a_pair),
    "a window": keeping(keeps_a_window),
}


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_a_steady_loop_compares_nothing_slowly(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    program = make()
    jitted = jit(program)
    after = getattr(program, "after", lambda: None)
    for _ in range(_WARM):
        jitted(torch.randn(3, 4))
        after()
    made = comparisons(monkeypatch)
    for _ in range(10):
        jitted(torch.randn(3, 4))
        after()
    assert not made
    assert jitted.statistics().recordings == 1


@pytest.mark.parametrize("attribute", ["bits", "errors"])
def test_answers_that_are_new_objects_are_compared_quickly(attribute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import decimal

    numpy = pytest.importorskip("numpy")
    ask = {"bits": lambda: decimal.getcontext().prec, "errors": lambda: len(numpy.geterr()["divide"])}[attribute]
    jitted = jit(lambda x: x * ask() - 1)
    for _ in range(_WARM):
        jitted(torch.randn(3))
    made = comparisons(monkeypatch)
    jitted(torch.randn(3))
    assert not made


def test_state_that_is_kept_between_calls_is_found_anew_once_it_is_replaced() -> None:
    model, twin = network(), network()
    jitted = jit(lambda x: model(x) * 2 - 1)
    with torch.no_grad():
        for call in range(24):
            if call % 3 == 2:
                torch.manual_seed(call)
                at, name = call % 2 * 3, "bias" if call % 4 else "weight"
                fresh = nn.Parameter(torch.randn_like(getattr(model[at], name)))
                for each in (model, twin):
                    setattr(each[at], name, nn.Parameter(fresh.detach().clone()))
            x = torch.randn(3, 4)
            assert_same(jitted(x), twin(x) * 2 - 1)
    assert jitted.statistics().recordings == 1


def test_a_parameter_that_only_the_model_is_given_another_of_is_not_trained() -> None:
    model, twin = network(), network()
    jitted = jit(step_of(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    eager = step_of(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
    for call in range(10):
        if call == 6:
            for each in (model, twin):
                each[0].weight = nn.Parameter(torch.full_like(each[0].weight, 0.25))
        x = torch.randn(3, 4)
        assert_same(jitted(x), eager(x))
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            assert_same(ours, theirs)
