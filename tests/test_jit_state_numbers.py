"""Numbers in the program's state that change are inputs of one recording, and what the program counts, each replay counts.

Where the program needs the value while it runs, the number is guarded, and each value has a recording of its own.
"""

from __future__ import annotations

import collections
import copy
import logging
import math
import operator
import queue
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import treeplay
from support import assert_same, jit
from support.installed import package
from treeplay.trace import jit as jit_trace
from treeplay.tree import audit

CALLS = 12


class Agent:
    """State of the kinds that programs count in."""

    def __init__(self) -> None:
        self.rate, self.count, self.last, self.size = 1.0, 0, 0.0, 1
        self.table, self.items, self.text = {"count": 0}, [0, 1.5], ""
        self.mean = torch.ones(3)

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(vars(self))


Program = Callable[[Agent, Tensor], Any]
Change = Callable[[Agent, int], None]


def nothing(agent: Agent, call: int) -> None:
    pass


def beside_eager(program: Program, change: Change = nothing, *, calls: int = CALLS, **options: Any) -> Any:
    """The jitted program after calls beside an eager twin: results, exceptions and state are the same, with their types."""
    mine, twin = Agent(), Agent()
    jitted = jit(lambda x: program(mine, x), **{"on_refusal": "eager", **options})
    for call in range(calls):
        x = torch.arange(3.0) + call
        change(mine, call)
        change(twin, call)
        found, expected = outcome(lambda x=x: jitted(x)), outcome(lambda x=x: program(twin, x))
        assert_same(found, expected)
        for name, value in twin.state().items():
            assert type(getattr(mine, name)) is type(value)
            assert_same(getattr(mine, name), value)
    return jitted


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ValueError as error:
        return str(error)


def counts(agent: Agent, x: Tensor) -> Tensor:
    agent.count += 1
    return x * agent.count - 1


def counts_for_itself(agent: Agent, x: Tensor) -> Tensor:
    agent.count += 1
    return x * 2 - 1


def averages(agent: Agent, x: Tensor) -> Tensor:
    agent.count += 1
    decay = agent.last = min(0.9, (1 + agent.count) / (10 + agent.count))
    agent.mean.mul_(decay).add_(x, alpha=1 - decay)
    return agent.mean - x


def counts_in_containers(agent: Agent, x: Tensor) -> Tensor:
    agent.table["count"] += 2
    agent.items[0] -= 1
    agent.items[1] *= 0.5
    return x * agent.items[1] + agent.items[0] - agent.table["count"]


def sums_what_it_counts(agent: Agent, x: Tensor) -> Tensor:
    agent.count += 1
    agent.size += agent.count
    return x * agent.size - agent.count


def exchanges(agent: Agent, x: Tensor) -> Tensor:
    agent.rate, agent.last = agent.last + 1.5, agent.rate
    return x * agent.rate - agent.last


def grows(agent: Agent, x: Tensor) -> Tensor:
    agent.last = agent.last * 1e200 + 1e200  # to infinity
    return x / agent.last


def warms_up(agent: Agent, x: Tensor) -> Tensor:
    agent.count += 1
    return x * (agent.rate * min(1.0, agent.count / 5))


COUNTING = [counts, counts_for_itself, averages, counts_in_containers, sums_what_it_counts, exchanges, grows, warms_up]


@pytest.mark.parametrize("program", COUNTING)
def test_what_a_program_counts_each_replay_counts(program: Program) -> None:
    found = beside_eager(program).statistics()
    assert found.refusals == 0 and found.replays >= CALLS - 4


@pytest.mark.compile
@pytest.mark.parametrize("program", [counts, counts_for_itself, sums_what_it_counts])
def test_compiled_too(program: Program) -> None:
    assert beside_eager(program, lower="inductor").statistics().replays >= CALLS - 4


def every_third(agent: Agent, x: Tensor) -> Tensor:
    agent.count += 1
    if agent.count % 3 == 0:
        agent.mean.copy_(x)
    return agent.mean * x - 1


def in_turn(agent: Agent, x: Tensor) -> Tensor:
    agent.count = (agent.count + 1) % 4
    return x - 1 if agent.count else x * 2 - 1


@pytest.mark.parametrize("program", [every_third, in_turn])
def test_a_branch_on_what_is_counted_has_a_recording_for_each_outcome(program: Program) -> None:
    found = beside_eager(program, calls=20).statistics()
    assert found.recordings == 2 and found.replays >= 12


def rate_of(agent: Agent, call: int) -> None:
    agent.rate, agent.size = 0.9**call - 0.5, 7 * call - 3


COMPUTING: dict[str, Program] = {
    "product": lambda agent, x: x * agent.rate - agent.size,
    "scalar of an operator": lambda agent, x: torch.add(x, agent.mean, alpha=agent.rate) - agent.size,
    "interpolation": lambda agent, x: torch.lerp(x, agent.mean, agent.rate),
    "bound": lambda agent, x: x.clamp(max=agent.rate * 4),
    "choice": lambda agent, x: torch.where(x > agent.size, x - 1, x * agent.rate),
    "new tensor": lambda agent, x: x - torch.full((3,), agent.rate),
    "absolute value": lambda agent, x: x * abs(agent.rate - 0.25) - 1,
}


@pytest.mark.parametrize("what", COMPUTING)
def test_a_number_that_is_set_between_calls_is_an_input(what: str) -> None:
    found = beside_eager(COMPUTING[what], rate_of).statistics()
    assert found.refusals == 0 and (found.recordings, found.replays) == (1, CALLS - 1)


def _into_state(agent: Agent, x: Tensor) -> Tensor:
    torch.sub(x, agent.mean, alpha=agent.rate, out=agent.mean)
    return agent.mean * 2 - x


def _into_new(agent: Agent, x: Tensor) -> Tensor:
    made = [torch.empty(size) for size in (3, 3, 3, 0)]
    torch.mul(x, agent.rate, out=made[0])
    torch.lerp(x, agent.mean, agent.rate, out=made[1])
    torch.clamp(x, max=agent.rate * 4, out=made[2])
    torch.addcdiv(x, agent.mean, x + 1, value=agent.rate, out=made[3])
    return made[0] - made[1] * made[2] - made[3]


def halves(agent: Agent, call: int) -> None:
    agent.rate = 0.5**call  # which compiled code multiplies with as exactly


INTO: Any = pytest.mark.parametrize("program", [_into_state, _into_new])


@INTO
def test_a_number_of_an_operator_that_is_given_its_result(program: Program) -> None:
    found = beside_eager(program, rate_of).statistics()
    assert found.refusals == 0 and (found.recordings, found.replays) == (1, CALLS - 1)


@pytest.mark.compile
@INTO
def test_a_number_of_an_operator_that_is_given_its_result_compiled(program: Program) -> None:
    found = beside_eager(program, halves, lower="inductor").statistics()
    assert found.refusals == 0 and (found.recordings, found.replays) == (1, CALLS - 1)


def keeps_text(agent: Agent, x: Tensor) -> Tensor:
    agent.text = f"{agent.rate}"
    return x * agent.rate - 1


NEEDING: dict[str, Program] = {
    "index": lambda agent, x: x[agent.size % 3] * agent.rate,
    "loop": lambda agent, x: sum((x * k - 1 for k in range(agent.size % 4)), x),
    "function of Python's": lambda agent, x: x * math.sin(agent.rate),
    "whole number": lambda agent, x: x * int(agent.rate * 10),
    "rounded": lambda agent, x: x * round(agent.rate, 1),
    "key": lambda agent, x: x * {0: 2.0, 1: 3.0}.get(agent.size % 3, 5.0),
    "length of its text": lambda agent, x: x * len(str(agent.size)) - len(f"{agent.rate}"),
    "text that is kept": keeps_text,
    "type": lambda agent, x: x * (2.0 if isinstance(agent.rate, float) else 3.0) * agent.rate,
    "size": lambda agent, x: x.repeat(agent.size % 3 + 1) * agent.rate,
}


@pytest.mark.parametrize("what", NEEDING)
def test_a_number_whose_value_is_needed_is_guarded(what: str) -> None:
    beside_eager(NEEDING[what], rate_of)


def set_at_times(agent: Agent, call: int) -> None:
    if call % 4 == 3:
        agent.count = agent.count * 10 - 1


def test_what_is_counted_may_be_set_from_outside() -> None:
    found = beside_eager(counts, set_at_times, calls=20).statistics()
    assert found.recordings == 1 and found.replays >= 17


@pytest.mark.parametrize(
    "values", [[1, 1.0, 2, 2.5], [True, 1, 2, False], [1, None, 2, 3], [2**62, 2**63, 2**70, 1]], ids=str
)
def test_a_value_of_another_kind_is_another_recording(values: list[Any]) -> None:
    def change(agent: Agent, call: int) -> None:
        agent.rate = values[call % 4]

    beside_eager(lambda agent, x: x - 1 if agent.rate is None else x * (agent.rate % 5), change, calls=16)


def test_a_number_from_elsewhere_is_not_taken_for_what_it_was() -> None:
    jobs: queue.SimpleQueue[int] = queue.SimpleQueue()

    def program(agent: Agent, x: Tensor) -> Tensor:
        before, agent.size = agent.size, jobs.qsize()
        return x * 2 - before

    def change(agent: Agent, call: int) -> None:
        jobs.put(call)  # for the program, and for its twin

    beside_eager(program, change, calls=8)


def test_an_attribute_named_as_a_function_of_the_module_is_no_use_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(agent: Agent, x: Tensor) -> Tensor:
        agent.named_alike = agent.rate  # type: ignore[attr-defined]
        return x * agent.rate - 1

    def changes(agent: Agent, call: int) -> None:
        agent.rate, others.text = call / 7, "a" * call

    others = Agent()
    monkeypatch.setitem(globals(), "named_alike", lambda x: x * len(others.text) - 2)
    facts = beside_eager(program, changes).statistics()
    assert (facts.recordings, facts.replays) == (1, CALLS - 1)


def test_what_torch_logs_of_symbols_is_no_read_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(agent: Agent, x: Tensor) -> Tensor:
        return x * (7 // agent.count if agent.count else 1) - agent.count

    agent = Agent()
    step, x = jit(lambda x: program(agent, x)), torch.arange(3.0)
    for agent.count in range(1, 9):
        monkeypatch.setattr(logging.getLogger(), "level", 10 * agent.count)
        assert_same(step(x), program(agent, x))
    assert step.statistics().recordings == 1
    assert "logg" not in str(step.explain())


def scaled(rate: float) -> tuple[Callable[[Tensor], Tensor], Callable[[float], None]]:
    def scale(x: Tensor) -> Tensor:
        return x * rate - 1

    def change(value: float) -> None:
        nonlocal rate
        rate = value

    return scale, change


def test_numbers_in_closures_of_one_function_are_each_an_input() -> None:
    (one, set_one), (other, set_other) = scaled(0.5), scaled(0.25)
    step, x = jit(lambda x: other(one(x))), torch.arange(3.0)
    for value in range(1, CALLS):
        (set_other if value > 5 else set_one)(value / 7)
        assert_same(step(x), other(one(x)))
    assert step.statistics().replays >= CALLS - 4


def test_a_count_that_begins_anew() -> None:
    def program(agent: Agent, x: Tensor) -> Tensor:
        agent.count += 1
        if agent.count == 4:
            agent.count = 0
        return x * agent.count - 1

    assert beside_eager(program, calls=20).statistics().replays >= 16


def test_a_schedule_of_the_users_own_inside_of_the_step() -> None:
    class Trainer:
        def __init__(self) -> None:
            torch.manual_seed(3)
            self.net, self.epoch = nn.Linear(3, 1), 0
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

        def step(self, x: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = self.net(x).square().mean()
            loss.backward()
            self.optimizer.step()
            self.epoch += 1
            for group in self.optimizer.param_groups:
                group["lr"] = 0.1 * 0.5**self.epoch
            return loss.detach()

    mine, twin = Trainer(), Trainer()
    jitted = jit(mine.step)
    for _ in range(10):
        x = torch.randn(4, 3)
        assert_same(jitted(x), twin.step(x))
        assert_same(list(mine.net.parameters()), list(twin.net.parameters()))
        assert mine.optimizer.param_groups[0]["lr"] == twin.optimizer.param_groups[0]["lr"]
    assert jitted.statistics().replays >= 7


@pytest.mark.parametrize(
    "rate_at",
    [
        lambda step: 0.1 * min(1.0, step / 5),  # a warm-up, which ends at a constant
        lambda step: 0.1 if step % 2 else 0.2,
    ],
)
def test_a_rate_that_the_program_sets_to_a_constant(rate_at: Callable[[int], float]) -> None:
    class Trainer:
        def __init__(self) -> None:
            torch.manual_seed(3)
            self.net, self.steps = nn.Linear(3, 1), 0
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.3)

        def step(self, x: Tensor) -> None:
            self.steps += 1
            self.optimizer.param_groups[0]["lr"] = rate_at(self.steps)
            self.optimizer.zero_grad()
            self.net(x).square().mean().backward()
            self.optimizer.step()

    mine, twin = Trainer(), Trainer()
    jitted = jit(mine.step)
    for call in range(14):
        if call == 10:
            mine.optimizer.param_groups[0]["lr"] = twin.optimizer.param_groups[0]["lr"] = 0.7
        x = torch.randn(4, 3)
        jitted(x), twin.step(x)
        assert_same(list(mine.net.parameters()), list(twin.net.parameters()))
        assert mine.optimizer.param_groups[0]["lr"] == twin.optimizer.param_groups[0]["lr"]
    assert jitted.statistics().replays >= 11


def test_a_program_that_raises_has_counted() -> None:
    def program(agent: Agent, x: Tensor) -> Tensor:
        agent.count += 1
        if agent.count == 7:
            raise ValueError("seven")
        return x * agent.count - 1

    assert beside_eager(program).statistics().replays


def test_two_numbers_of_which_one_is_needed() -> None:
    def change(agent: Agent, call: int) -> None:
        agent.rate, agent.size = call / 7, call // 6

    found = beside_eager(lambda agent, x: x[agent.size] * agent.rate - 1, change).statistics()
    assert found.recordings == 2 and found.replays >= 6, "the other one stays an input"


def passing_refusal(program: Callable[..., Any], *more: Callable[[int], Any]) -> Any:
    """Of a program that is refused in its first calls, and tried again twelve calls later."""
    mine, twin = Agent(), Agent()
    jitted = jit(lambda x, *others: program(mine, x, *others), on_refusal="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(2 * CALLS):
            if call == CALLS:
                for entry in jitted._manager.cache.table:
                    entry.not_before = 0.0
                jitted._manager.cache.pause.end()
            others = [make(call) for make in more]
            assert_same(jitted(torch.arange(3.0) + call, *others), program(twin, torch.arange(3.0) + call, *others))
            assert mine.count == twin.count
    return jitted.statistics()


def fills(agent: Agent, x: Tensor) -> Tensor:
    """A history is filled by the first calls."""
    agent.count += 1
    if len(agent.items) < 6:
        agent.items.append(x)
    return x * agent.count - 1


def test_a_refusal_for_something_else_leaves_a_counter_an_input() -> None:
    found = passing_refusal(fills)
    assert found.recordings == 1 and found.replays >= 9


def test_a_refusal_for_something_else_leaves_a_number_among_the_arguments_an_input() -> None:
    def step(agent: Agent, x: Tensor, rate: float) -> Tensor:
        if len(agent.items) < 6:
            agent.items.append(x)
        return x * rate - 1

    found = passing_refusal(step, lambda call: call / 7)
    assert found.recordings == 1 and found.replays >= 9


def test_a_refusal_for_something_else_beside_a_counter_tells_its_own_reason() -> None:
    def step(agent: Agent, x: Tensor) -> Tensor:
        agent.count += 1
        if agent.size == 3:
            agent.last = x.sum().item()
        return x * agent.count - 1

    with pytest.warns(UserWarning, match="eagerly. item: "):
        beside_eager(step, lambda agent, call: setattr(agent, "size", 3 if call in (3, 4) else 1))


def test_a_counter_whose_value_is_needed_in_the_first_calls_is_an_input_after_them() -> None:
    def step(agent: Agent, x: Tensor) -> Tensor:
        agent.count += 1
        if agent.count < 6:
            agent.text = f"step {agent.count}"
        return x * agent.count - 1

    assert passing_refusal(step).replays >= 9


def test_a_number_among_the_arguments_that_is_needed_leaves_the_counted_ones() -> None:
    """They were guarded from then on, so that a program that counts was refused."""

    def step(agent: Agent, x: Tensor, times: int) -> Tensor:
        for _ in range(times):
            x = x * 2 - agent.mean
        agent.count += 1
        return x - agent.count

    mine, twin = Agent(), Agent()
    jitted, x = jit(lambda x, times: step(mine, x, times)), torch.ones(3)
    for times in [2] * 6 + [1] * 6 + [2, 1]:
        assert_same(jitted(x, times), step(twin, x, times))
        assert mine.count == twin.count
    assert jitted.statistics().replays >= 9


ASKED: dict[str, Callable[[Any], bool]] = {
    "is None": lambda value: value is None,
    "== None": lambda value: value == None,  # noqa: E711
    "a float": lambda value: isinstance(value, float),
    "a tensor": lambda value: isinstance(value, Tensor),
    "has a shape": lambda value: hasattr(value, "shape"),
}


@pytest.mark.parametrize("last", [None, 2.5, "text", True, torch.tensor(2.0)], ids=str)
@pytest.mark.parametrize("asked", ASKED)
def test_a_number_of_which_only_the_kind_is_asked_may_become_another_kind(asked: str, last: Any) -> None:
    """It was an input once it had varied, and nothing looked at what had taken its place."""

    def step(agent: Agent, x: Tensor) -> Tensor:
        return x * 2 if ASKED[asked](agent.rate) else x - 1

    mine, twin = Agent(), Agent()
    jitted, x = jit(lambda x: step(mine, x)), torch.ones(3)
    for value in [1, 1, 2, 3, 4, last, last, 5]:
        mine.rate = twin.rate = value
        assert_same(jitted(x), step(twin, x))


@pytest.mark.parametrize("last", [None, 1, True])
def test_a_rate_of_which_only_the_kind_is_asked_may_become_another_kind(last: Any) -> None:
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.5)
    group = optimizer.param_groups[0]

    def program(x: Tensor) -> Tensor:
        return x * 2 if isinstance(optimizer.param_groups[0]["lr"], float) else x - 1

    jitted, x = jit(program), torch.ones(2)
    for rate in [0.5, 0.5, 0.25, last, last, 0.125]:
        group["lr"] = rate
        assert_same(jitted(x), program(x))


def test_a_rate_that_the_program_sets_to_what_it_was_is_set_by_each_replay() -> None:
    """Nothing seemed to have changed, for the number had stood as a symbol."""
    base = 0.25

    def step(group: dict[str, Any], x: Tensor) -> Tensor:
        y = x * group["lr"]
        group["lr"] = base
        return y - 1

    groups = [torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=base).param_groups[0] for _ in range(2)]
    optimizers = groups[0], groups[1]
    jitted = jit(lambda x: step(optimizers[0], x), on_refusal="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for rate in [None, None, None, 0.5, None, 0.125, None]:
            for group in groups:
                group["lr"] = group["lr"] if rate is None else rate
            assert_same(jitted(torch.ones(2)), step(optimizers[1], torch.ones(2)))
            assert groups[0]["lr"] == groups[1]["lr"] == base


class Sign(torch.optim.Optimizer):
    """An optimizer of the user's own, which counts its steps in Python numbers, for each parameter."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"], state["step"] = torch.zeros_like(parameter), 0
                state["step"] += 1
                state["mean"].lerp_(parameter.grad, 0.1)
                rate = group["lr"] * min(1.0, state["step"] / 4) / (1 - 0.9 ** state["step"])
                parameter.add_(state["mean"].sign(), alpha=-rate)


class SignOfGroups(Sign):
    """Which counts once for each group."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            rate = group["lr"] * min(1.0, group["step"] / 4) / (1 - 0.9 ** group["step"])
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                mean.lerp_(parameter.grad, 0.1)
                parameter.add_(mean.sign(), alpha=-rate)


@pytest.mark.parametrize("kind", [Sign, SignOfGroups])
def test_an_optimizer_of_ones_own_counts_its_steps(kind: type[Sign]) -> None:
    def trainer() -> tuple[nn.Module, Sign, Callable[[Tensor], Tensor]]:
        torch.manual_seed(3)
        net = nn.Linear(3, 1)
        optimizer = kind(net.parameters(), lr=0.1)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return net, optimizer, step

    (mine, ours, program), (twin, theirs, eager) = trainer(), trainer()
    jitted = jit(program)
    for call in range(12):
        x = torch.linspace(-1, 2, 12).view(4, 3) + call
        assert_same(jitted(x), eager(x))
        assert_same(list(mine.parameters()), list(twin.parameters()))
        assert [state.get("step") for state in ours.state.values()] == [
            state.get("step") for state in theirs.state.values()
        ]
        assert ours.param_groups[0].get("step") == theirs.param_groups[0].get("step")
    statistics = jitted.statistics()
    assert (statistics.recordings, statistics.refusals) == (2, 0), "one while the rate rises, one after that"
    assert statistics.replays >= 9


KINDS = (dict, collections.defaultdict, collections.Counter, collections.OrderedDict, collections.UserDict)


@pytest.mark.parametrize("make", [*KINDS, collections.ChainMap, type("Derived", (collections.UserDict,), {})])
def test_counts_in_dictionaries_of_each_kind(make: Any) -> None:
    def made() -> Any:
        return make(int, {"a": 0, "b": 1.5}) if make is collections.defaultdict else make({"a": 0, "b": 1.5})

    def step(table: Any, x: Tensor) -> Tensor:
        table["a"] += 2
        table["b"] *= 0.5
        return x * table["a"] - table["b"]

    mine, twin = made(), made()
    jitted, x = jit(lambda x: step(mine, x)), torch.ones(2)
    for call in range(12):
        if call == 6:
            mine["a"] = twin["a"] = 50
        if call == 9:
            mine["c"] = twin["c"] = 1
        assert_same(jitted(x), step(twin, x))
        assert mine == twin and type(mine["a"]) is int
    assert jitted.statistics().replays >= 10


def _counted_by_key(agent: Agent, x: Tensor) -> Tensor:
    agent.table[agent.name] += 1
    return x * agent.table[agent.name] - 1


def _gone_through(agent: Agent, x: Tensor) -> Tensor:
    agent.table.update({key: value + 2 for key, value in agent.table.items()})
    return sum((weight * x - 1 for weight in agent.table.values()), x)


def _counted_by_name(agent: Agent, x: Tensor) -> Tensor:
    setattr(agent, agent.name, getattr(agent, agent.name) + 1)
    return x * getattr(agent, agent.name) - 1


@pytest.mark.parametrize("program", [_counted_by_key, _gone_through, _counted_by_name])
def test_numbers_under_strings_that_code_computes(program: Program) -> None:
    def named(agent: Agent, x: Tensor) -> Tensor:
        return program(agent, x)

    mine, twin = Agent(), Agent()
    mine.name = twin.name = "visits"
    mine.visits = twin.visits = 0
    mine.table, twin.table = {"visits": 0, "weight": 0.5}, {"visits": 0, "weight": 0.5}
    jitted = jit(lambda x: named(mine, x))
    for call in range(CALLS):
        mine.table["weight"] = twin.table["weight"] = 0.5**call
        assert_same(jitted(torch.ones(3)), named(twin, torch.ones(3)))
        assert_same(mine.state(), twin.state())
    assert jitted.statistics().replays >= CALLS - 3


class Counting:
    def __init__(self) -> None:
        self.name, self.visits = "visits", 0

    def by_vars(self, x: Tensor) -> Tensor:
        vars(self)[self.name] += 1
        return x * vars(self)[self.name] - 1

    def by_namespace(self, x: Tensor) -> Tensor:
        self.__dict__[self.name] += 1
        return x * self.__dict__[self.name] - 1

    def of_another(other, x: Tensor) -> Tensor:
        other.__dict__[other.name] += 1
        return x * other.__dict__[other.name] - 1


@pytest.mark.parametrize("method", ["by_vars", "by_namespace", "of_another"])
def test_numbers_under_computed_names_in_the_namespace_of_an_object(method: str) -> None:
    mine, twin = Counting(), Counting()
    jitted = jit(getattr(mine, method))
    for _ in range(CALLS):
        assert_same(jitted(torch.ones(3)), getattr(twin, method)(torch.ones(3)))
        assert mine.visits == twin.visits
    assert jitted.statistics().replays == CALLS - 1


def test_a_capture_reads_numbers_under_strings_that_code_computes() -> None:
    table = {"first": 1.0, "second": 2.0}

    def program(x: Tensor) -> Tensor:
        return sum((x * weight - 1 for weight in table.values()), x)

    jitted = jit(program, lower="capture")
    for number in [1.0, 1.0, 1.0, 3.0, 3.0, 1.0]:
        table["first"] = number
        assert_same(jitted(torch.ones(3)), program(torch.ones(3)))


_calls = 0


@pytest.mark.parametrize("where", ["global", "closure", "attribute of a module"])
def test_counters_elsewhere(where: str) -> None:
    global _calls
    _calls, inside, module = 0, 0, nn.Linear(2, 2)
    module.steps = 0

    def step(x: Tensor) -> Tensor:
        global _calls
        nonlocal inside
        if where == "global":
            _calls += 1
        elif where == "closure":
            inside += 1
        else:
            module.steps += 1
        return x * (_calls + inside + module.steps) - 1

    jitted, x = jit(step), torch.ones(2)
    for call in range(1, 9):
        assert_same(jitted(x), x * call - 1)
        assert _calls + inside + module.steps == call
    assert jitted.statistics().replays == 7


A_LIBRARY = """
import math, torch

class Counter:
    def __init__(self):
        self.rate, self.count, self.table = 1.0, 0, {"count": 0}

    def attribute(self, x):
        self.count += 1
        return x * math.sqrt(1 - 0.9 ** self.count) - 1

    def item(self, x):
        self.table["count"] += 1
        return x * self.table["count"] - 1

    def through_another_method(self, x):
        return self.attribute(x) - self.item(x)

    def set_outside(self, x):
        return x * self.rate - 1

class Around:
    def __init__(self):
        self.inner = Counter()

    def of_another_object(self, x):
        return self.inner.through_another_method(x) - self.inner.set_outside(x)

class Sign(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.5})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                p.mul_(group["lr"] / state["step"]).sub_(p.grad.sign(), alpha=1 / group["count"])
"""


@pytest.mark.parametrize("method", ["attribute", "item", "through_another_method"])
def test_what_a_class_of_an_installed_package_counts(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = package(A_LIBRARY, monkeypatch)
    mine, twin = library.Counter(), library.Counter()
    jitted = jit(lambda x: getattr(mine, method)(x))
    for call in range(8):
        x = torch.arange(3.0) + call
        assert_same(jitted(x), getattr(twin, method)(x))
        assert vars(mine) == vars(twin)
    assert jitted.statistics().replays == 7


def test_a_number_of_an_object_of_an_installed_package_that_is_set_between_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = package(A_LIBRARY, monkeypatch)
    mine, twin = library.Around(), library.Around()
    jitted = jit(lambda x: mine.of_another_object(x))
    for call in range(8):
        mine.inner.rate = twin.inner.rate = 1.0 + call / 3
        x = torch.arange(3.0) + call
        assert_same(jitted(x), twin.of_another_object(x))
        assert vars(mine.inner) == vars(twin.inner)
    assert jitted.statistics().replays == 6 and jitted.statistics().recordings == 1


def test_an_optimizer_of_an_installed_package_counts_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    library = package(A_LIBRARY, monkeypatch)
    weights = [nn.Parameter(torch.arange(3.0)) for _ in range(2)]
    optimizers = [library.Sign([weight]) for weight in weights]

    def step(at: int, x: Tensor) -> Tensor:
        weights[at].grad = None
        loss = (weights[at] * x).sum()
        loss.backward()
        optimizers[at].step()
        return loss.detach()

    jitted = jit(lambda x: step(0, x))
    for call in range(8):
        x = torch.arange(3.0) - call
        assert_same(jitted(x), step(1, x))
        assert_same(weights[0].detach(), weights[1].detach())
        counts = [(o.param_groups[0]["count"], *(state["step"] for state in o.state.values())) for o in optimizers]
        assert counts[0] == counts[1] == (call + 1, call + 1)
    assert jitted.statistics().replays >= 6


def test_a_training_step_with_a_counter_and_an_annealed_weight() -> None:
    class Trainer:
        def __init__(self) -> None:
            torch.manual_seed(3)
            self.net, self.steps, self.weight = nn.Linear(3, 1), 0, 1.0
            self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)

        def step(self, x: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            out = self.net(x)
            loss = out.square().mean() + self.weight * sum(p.abs().sum() for p in self.net.parameters())
            loss.backward()
            self.optimizer.step()
            self.steps += 1
            return loss.detach() / self.steps

    mine, twin = Trainer(), Trainer()
    jitted = jit(mine.step)
    for epoch in range(10):
        mine.weight = twin.weight = 0.8**epoch
        x = torch.randn(4, 3)
        assert_same(jitted(x), twin.step(x))
        assert_same(list(mine.net.parameters()), list(twin.net.parameters()))
        assert mine.steps == twin.steps == epoch + 1
    assert jitted.statistics().replays == 9


def test_a_model_that_the_caller_differentiates_guards_its_numbers() -> None:
    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.strength = nn.Linear(3, 2), 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * self.strength - 1

    model = Reversed()
    twin = copy.deepcopy(model)
    jitted = jit(model, on_refusal="eager")
    for call in range(8):
        model.strength = twin.strength = [0.5, 0.25][call % 2]
        x = torch.randn(2, 3)
        found, expected = jitted(x), twin(x)
        assert_same(found, expected)
        found.sum().backward()
        expected.sum().backward()
        assert_same([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


def test_another_thread_sees_numbers_while_the_program_is_traced() -> None:
    agent, seen, over = Agent(), set(), threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.add(type(agent.count))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        jitted = jit(lambda x: counts(agent, x), on_refusal="eager")
        for call in range(1, 7):
            assert_same(jitted(torch.ones(3)), torch.ones(3) * call - 1)
    finally:
        over.set()
        thread.join()
    assert agent.count == 6 and int in seen


def test_a_number_that_the_program_does_not_read_is_left_alone_while_it_is_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put: list[str] = []
    stand_in = jit_trace.stand_in_for_state

    def noted(run: Any) -> Any:
        numbers = stand_in(run)
        put.extend(str(number.place) for number in numbers)
        return numbers

    monkeypatch.setattr(jit_trace, "stand_in_for_state", noted)

    def change(agent: Agent, call: int) -> None:
        agent.size += 1  # which others count

    def program(agent: Agent, x: Tensor) -> Tensor:
        names = ("size", "rate")
        return x * getattr(agent, names[1]) - 1

    found = beside_eager(program, change).statistics()
    assert not put and found.recordings == 1 and found.replays >= CALLS - 2


def test_a_trace_that_is_refused_leaves_the_numbers_as_they_were() -> None:
    def program(agent: Agent, x: Tensor) -> Tensor:
        agent.count += 1
        return x * agent.count + float(x.sum())

    assert beside_eager(program).statistics().replays == 0


def test_a_number_of_state_that_is_returned() -> None:
    def program(agent: Agent, x: Tensor) -> tuple[Tensor, int]:
        agent.count += 1
        return x * agent.count - 1, agent.count

    beside_eager(program)


def test_an_audit_finds_what_is_counted_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_OF_THE_TIME", 1e9)
    with treeplay.settings.changed(audit=True):
        found = beside_eager(averages, calls=40).statistics()
    assert found.replays >= 30 and found.keys[0].recordings[0].audits >= 1


# --- random programs ------------------------------------------------------------------------------------------

PLACES = ("count", "size", "rate", "last", "entry", "item")
NUMBERS = st.one_of(st.integers(-3, 9), st.sampled_from([0.5, -1.25, 2.0, 0.1]))
TERMS = st.one_of(st.sampled_from(PLACES), NUMBERS)
STATEMENTS = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(PLACES), st.sampled_from("+-*%"), TERMS, TERMS),
    st.tuples(st.just("if"), st.sampled_from(PLACES), st.sampled_from("+-*"), TERMS, TERMS),
    st.tuples(st.just("use"), st.sampled_from("+-*"), TERMS),
    st.tuples(st.just("text"), st.sampled_from(PLACES)),
)
CHANGES = st.dictionaries(st.integers(1, 13), st.tuples(st.sampled_from(PLACES), NUMBERS), max_size=4)
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "%": lambda a, b: a % (abs(b) + 1),
}


def get(agent: Agent, term: Any) -> Any:
    if not isinstance(term, str):
        return term
    if term == "entry":
        return agent.table["count"]
    return agent.items[1] if term == "item" else getattr(agent, term)


def put(agent: Agent, place: str, value: Any) -> None:
    if place == "entry":
        agent.table["count"] = value
    elif place == "item":
        agent.items[1] = value
    else:
        setattr(agent, place, value)


def interpreted(body: list[Any], agent: Agent, x: Tensor) -> Tensor:
    for what, *rest in body:
        if what == "set":
            place, how, left, right = rest
            value = OPERATORS[how](get(agent, left), get(agent, right))
            put(agent, place, value % 97 if how == "*" else value)  # or it would grow without bound
        elif what == "if":
            place, how, left, right = rest
            if get(agent, left) > get(agent, right):
                put(agent, place, OPERATORS[how](get(agent, place), 1) % 97)
        elif what == "use":
            how, term = rest
            x = OPERATORS[how](x, get(agent, term)) - agent.mean
        else:
            agent.text = f"{get(agent, rest[0])}"
    return x * 0.5 - 1


def check_random_program(body: list[Any], changes: dict[int, Any]) -> None:
    def change(agent: Agent, call: int) -> None:
        if call in changes:
            put(agent, *changes[call])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        beside_eager(lambda agent, x: interpreted(body, agent, x), change, calls=14)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.lists(STATEMENTS, min_size=1, max_size=5), CHANGES)
def test_random_programs_that_count(body: list[Any], changes: dict[int, Any]) -> None:
    check_random_program(body, changes)


@pytest.mark.soak
@settings(max_examples=1500, deadline=None, derandomize=True, database=None)
@given(st.lists(STATEMENTS, min_size=1, max_size=6), CHANGES)
def test_more_random_programs_that_count(body: list[Any], changes: dict[int, Any]) -> None:
    check_random_program(body, changes)
