"""Another thread acts exactly while a program is traced or runs: nothing is lost, rewound or refused, and it sees no fakes."""

from __future__ import annotations

import copy
import gc
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from support import assert_same, jit, training
from support.interleaving import Interleaving, Moment, devices, meet

pytestmark = pytest.mark.programs

on_both = pytest.mark.parametrize("device", devices())


def second_call(jitted: Any, act: Callable[[], Any], *args: Any) -> Any:
    """The call that traces, with `act` in another thread meanwhile; returns what `act` returned."""
    jitted(*args)
    with Interleaving(Moment.TRACE, act) as other:
        jitted(*args)
    return other.result


def assert_recorded(jitted: Any, device: str) -> None:
    made = jitted.statistics()
    assert made.recordings == 1 and made.refusals == 0, jitted.explain()
    if device == "cuda":
        assert made.keys[0].recordings[-1].launch.stage == "recorded", jitted.explain()


# --- random numbers --------------------------------------------------------------------------------------------------


@on_both
@pytest.mark.parametrize("source", ["random", "numpy", "own", "numpy's own"])
def test_draws_of_another_thread_are_neither_rewound_nor_blamed(source: str, device: str) -> None:
    mine, theirs = random.Random(5), np.random.default_rng(5)
    draw = {
        "random": random.random,
        "numpy": lambda: float(np.random.rand()),
        "own": mine.random,
        "numpy's own": lambda: float(theirs.random()),
    }[source]
    service = Service(device)
    service.sources = (mine, theirs)  # type: ignore[attr-defined]

    def program(x: torch.Tensor) -> torch.Tensor:
        return service(x)

    jitted, x = jit(program), torch.ones(3, device=device)
    first = second_call(jitted, draw, x)
    assert draw() != first
    for _ in range(3):
        assert_same(jitted(x), program(x))
    assert_recorded(jitted, device)


@on_both
def test_numbers_that_another_thread_draws_from_torch_are_those_that_come_next(device: str) -> None:
    twin = torch.Generator(device)
    generator = torch.default_generator if device == "cpu" else torch.cuda.default_generators[0]

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(meet(x), 0.5)

    jitted, x = jit(program), torch.ones(64, device=device)
    jitted(x)
    twin.set_state(generator.get_state())
    with Interleaving(Moment.TRACE, lambda: torch.rand(4, device=device)) as other:
        jitted(x)
    assert_same(other.result, torch.rand(4, device=device, generator=twin))
    assert not torch.equal(torch.rand(4, device=device), other.result)


@on_both
def test_a_seed_that_another_thread_sets_counts(device: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return meet(x) - 2

    jitted, x = jit(program), torch.ones(3, device=device)
    second_call(jitted, lambda: torch.manual_seed(1234), x)
    found = torch.rand(3, device=device)
    torch.manual_seed(1234)
    assert_same(found, torch.rand(3, device=device))
    assert jitted.statistics().refusals == 0


def test_a_draw_of_the_programs_own_is_refused_and_put_back_beside_other_threads() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return meet(x) * random.random()

    jitted, x = jit(program, on_refusal="eager"), torch.ones(3)
    random.seed(3)
    found = []
    jitted_first = jitted(x)
    with Interleaving(Moment.TRACE, lambda: None), pytest.warns(UserWarning, match="random"):
        found = [jitted_first, jitted(x)]
    random.seed(3)
    assert_same(found, [program(x), program(x)])


def test_a_seed_of_the_programs_own_is_refused_and_put_back() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        return x + torch.rand(3)

    jitted, x = jit(program, on_refusal="eager"), torch.ones(3)
    with pytest.warns(UserWarning, match="seed"):
        found = [jitted(x) for _ in range(3)]
    assert_same(found, [program(x) for _ in range(3)])


# --- containers, attributes, globals ----------------------------------------------------------------------------------


class Service:
    """What a server might be: settings that the program reads, and things beside it that other threads change."""

    def __init__(self, device: str) -> None:
        self.scale = torch.full((3,), 3.0, device=device)
        self.offset = 2
        self.requests: list[str] = ["first"]
        self.counts = {"calls": 0}
        self.names = {"a"}
        self.note = "idle"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return meet(x) * self.scale - self.offset


total = 0


def change_global(service: Service) -> None:
    global total
    total += 1


CHANGES: dict[str, tuple[Callable[[Service], Any], Callable[[Service], Any]]] = {
    "an item that is appended": (lambda it: it.requests.append("second"), lambda it: it.requests),
    "an entry that counts": (lambda it: it.counts.update(calls=it.counts["calls"] + 1), lambda it: it.counts),
    "an entry that is new": (lambda it: it.counts.update(other=5), lambda it: it.counts),
    "an entry that goes": (lambda it: it.counts.pop("calls"), lambda it: it.counts),
    "an element of a set": (lambda it: it.names.add("b"), lambda it: it.names),
    "an attribute": (lambda it: setattr(it, "note", "busy"), lambda it: it.note),
    "an attribute that is new": (lambda it: setattr(it, "more", 7), lambda it: it.more),  # type: ignore[attr-defined]
    "a global": (change_global, lambda it: total),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_another_thread_changes_stays_and_is_not_blamed_on_the_program(change: str) -> None:
    act, read = CHANGES[change]
    service, twin = Service("cpu"), Service("cpu")
    before = total
    act(twin)
    wanted = copy.copy(read(twin))
    if change == "a global":
        globals()["total"] = before
    jitted, x = jit(service), torch.ones(3)
    second_call(jitted, lambda: act(service), x)
    assert read(service) == wanted
    assert_same([jitted(x) for _ in range(3)], [Service("cpu")(x)] * 3)
    assert read(service) == wanted  # no replay does it again
    assert_recorded(jitted, "cpu")


@on_both
def test_an_item_that_another_thread_appends_stays_when_the_trace_is_refused(device: str) -> None:
    service = Service(device)

    def program(x: torch.Tensor) -> float:
        return float(service(x).sum())

    jitted, x = jit(program, on_refusal="eager"), torch.ones(3, device=device)
    with pytest.warns(UserWarning, match="item"):
        second_call(jitted, lambda: service.requests.append("second"), x)
    assert service.requests == ["first", "second"]


def test_what_the_program_itself_stores_is_put_back_beside_another_threads_write() -> None:
    state: dict[str, Any] = {"h": torch.zeros(3), "theirs": 0}

    def program(x: torch.Tensor) -> torch.Tensor:
        state["h"] = meet(x) * 2 - state["h"]
        return state["h"] + 1

    jitted, x = jit(program), torch.ones(3)
    second_call(jitted, lambda: state.update(theirs=9), x)
    assert state["theirs"] == 9
    assert_same(state["h"], torch.zeros(3))  # 2 - (2 - 0), each call once
    assert not isinstance(state["h"], FakeTensor)


# --- gradients and hyper-parameters --------------------------------------------------------------------------------------


def step_of(device: str) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[..., Any]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    inner = training(model, optimizer)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = inner(x, y)
        return meet(loss)  # gradients and momentum are there by now

    return model, optimizer, step


def batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(4, 3, device=device), torch.zeros(4, 2, device=device)


@on_both
def test_another_thread_sees_no_fake_gradient(device: str) -> None:
    model, _, step = step_of(device)
    jitted, args = jit(step), batch(device)
    jitted(*args)
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    with Interleaving(Moment.TRACE, lambda: [p.grad for p in model.parameters()]) as other:
        jitted(*args)
    assert not any(isinstance(grad, FakeTensor) for grad in other.result)
    assert len(before) == len(other.result) == 2


@on_both
def test_a_gradient_that_another_thread_sets_stays(device: str) -> None:
    model, _, step = step_of(device)
    jitted, args = jit(step), batch(device)
    jitted(*args)
    mine = torch.full_like(model.bias, 7.0)
    frozen = torch.nn.Parameter(torch.ones(2, device=device))
    jitted.seen = frozen

    def act() -> None:
        frozen.grad = mine

    with Interleaving(Moment.TRACE, act):
        jitted(*args)
    assert frozen.grad is mine


@on_both
def test_another_thread_reads_the_learning_rate_as_a_number(device: str) -> None:
    _, optimizer, step = step_of(device)
    jitted, args = jit(step), batch(device)
    group = optimizer.param_groups[0]

    def act() -> Any:
        rate = group["lr"]
        return float(rate), str(rate), float(rate * 2), float(-rate), bool(rate == 0.5), bool(rate < 0.1)

    jitted(*args)
    with Interleaving(Moment.TRACE, act) as other:
        jitted(*args)
    assert other.result == (0.5, "0.5", 1.0, -0.5, True, False)
    assert group["lr"] == 0.5 and type(group["lr"]) is float
    for _ in range(2):
        jitted(*args)
    assert_recorded(jitted, device)


@on_both
def test_a_learning_rate_that_another_thread_sets_stays(device: str) -> None:
    model, optimizer, step = step_of(device)
    twin_model, twin_optimizer, twin = step_of(device)
    jitted, args = jit(step), batch(device)

    def act() -> None:
        optimizer.param_groups[0]["lr"] = 0.125

    second_call(jitted, act, *args)
    assert optimizer.param_groups[0]["lr"] == 0.125
    twin(*args)
    twin(*args)
    for one, other in zip(model.parameters(), twin_model.parameters(), strict=True):
        with torch.no_grad():
            other.copy_(one)
    twin_optimizer.param_groups[0]["lr"] = 0.125
    jitted(*args)
    twin(*args)
    torch.testing.assert_close(model.weight, twin_model.weight)


# --- threads that meet ---------------------------------------------------------------------------------------------------


def both(work: Callable[[int], Any], count: int = 2) -> list[Any]:
    """The results of `work` in threads at once."""
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results


@on_both
@pytest.mark.filterwarnings("ignore:treeplay runs")
def test_T39_threads_meet_at_a_barrier_inside_a_refused_program(device: str) -> None:
    barrier = threading.Barrier(2, timeout=20)

    def program(x: torch.Tensor) -> float:
        y = x * 2
        barrier.wait()
        return float(y.sum())

    jitted, x = jit(program, on_refusal="eager"), torch.ones(3, device=device)
    assert both(lambda _: [jitted(x) for _ in range(4)]) == [[6.0] * 4] * 2


@on_both
@pytest.mark.parametrize(
    "waits", ["for an event", "in a step that is scaled", "in a step", "in a module", "for an attribute"]
)
def test_a_thread_that_waits_since_then_holds_nothing_of_the_trace(waits: str, device: str) -> None:
    is_over, has_begun = threading.Event(), threading.Event()

    def wait_here(*_: Any) -> None:
        has_begun.set()
        is_over.wait(60)

    class Slow(torch.optim.SGD):
        step = wait_here  # type: ignore[assignment]

    class SlowModule(nn.Module):
        forward = wait_here
        answer = property(wait_here)

    slow, scaler = Slow([nn.Parameter(torch.ones(2))], lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(slow.param_groups[0]["params"][0].sum()).backward()  # type: ignore[no-untyped-call]
    work: Callable[[], Any] = {
        "for an event": lambda: is_over.wait(60),
        "in a step that is scaled": lambda: scaler.step(slow),
        "in a step": slow.step,
        "in a module": SlowModule(),
        "for an attribute": lambda: SlowModule().answer,
    }[waits]
    waiting = threading.Thread(target=work, daemon=True)

    def wait() -> None:
        waiting.start()
        if waits != "for an event":
            assert has_begun.wait(20)

    net = nn.Linear(3, 3).to(device).requires_grad_(False)

    def program(x: torch.Tensor, net: nn.Module = net) -> torch.Tensor:
        return net(meet(x)) - x  # type: ignore[no-any-return]

    jitted, x = jit(program), torch.ones(3, device=device)
    try:
        second_call(jitted, wait, x)
        assert waiting.is_alive()
        for _ in range(3):
            assert_same(jitted(x), net(x) - x)
        assert_recorded(jitted, device)
        weight = weakref.ref(net.weight)
        gc.disable()
        del jitted, net, program
        assert weight() is None
    finally:
        gc.enable()
        is_over.set()
        waiting.join()


@pytest.mark.filterwarnings("ignore:treeplay runs")
def test_a_refused_program_does_not_serialise_threads() -> None:
    inside, most = [0], [0]
    lock = threading.Lock()

    def busy() -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        threading.Event().wait(0.05)
        with lock:
            inside[0] -= 1

    def program(x: torch.Tensor) -> float:
        busy()
        return float((x * 2).sum())

    jitted, x = jit(program, on_refusal="eager"), torch.ones(3)
    for _ in range(3):
        jitted(x)
    both(lambda _: [jitted(x) for _ in range(3)], 4)
    assert most[0] >= 3


@on_both
def test_a_first_call_does_not_keep_another_thread_out(device: str) -> None:
    jitted, x = jit(lambda x: meet(x) * 3 - 1), torch.ones(3, device=device)
    with Interleaving(Moment.RUN, lambda: jitted(x)) as other:
        assert_same(jitted(x), other.result if other.is_done else jitted(x))
    assert_same(other.result, x * 2)


@on_both
def test_a_call_of_another_thread_waits_for_the_trace_and_no_longer(device: str) -> None:
    jitted, x = jit(lambda x: meet(x) * 3 - 1), torch.ones(3, device=device)
    assert_same(second_call(jitted, lambda: jitted(x), x), x * 2)
    for _ in range(3):
        assert_same(jitted(x), x * 2)
    assert_recorded(jitted, device)


@on_both
@pytest.mark.parametrize("is_training", [False, True])
def test_four_threads_share_a_program(is_training: bool, device: str) -> None:
    state = torch.zeros(3, device=device)
    turn = threading.Lock()

    def program(x: torch.Tensor) -> torch.Tensor:
        if is_training:
            state.add_(x)
        return x * 3 - 1

    jitted, x = jit(program), torch.ones(3, device=device)

    def work(_: int) -> None:
        for _ in range(50):
            with turn if is_training else threading.Lock():  # updates that race are the user's to order, as eagerly
                assert_same(jitted(x), x * 2)

    both(work, 4)
    if device == "cuda":
        torch.cuda.synchronize()
    assert_same(state, torch.full_like(state, 200.0 if is_training else 0.0))
    assert_recorded(jitted, device)
    before = jitted.statistics()
    both(work, 4)
    assert jitted.statistics().replays - before.replays == 200, jitted.explain()
