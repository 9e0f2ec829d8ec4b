"""Threads that record programs of the same classes disturb no recording that another thread replays."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import nn

from support import assert_same, jit, training

REPLAYS = 2000


TEMPLATE = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).eval()


def make_model() -> nn.Module:
    """A model of its own, for which nothing is drawn: another thread's trace would take that for its program's."""
    return copy.deepcopy(TEMPLATE)


def records_infer() -> None:
    """A program that is recorded."""
    model, x = make_model(), torch.ones(2, 3)
    other = jit(lambda x: model(x).detach())
    for _ in range(3):
        assert_same(other(x), model(x).detach())


def records_train() -> None:
    """A whole step that is recorded."""
    model = make_model().train()
    other = jit(training(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    for _ in range(3):
        other(torch.ones(2, 3), torch.ones(2, 2))


class Beside:
    """A thread that does the same again and again until it is told to stop."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.count = 0
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        torch.set_num_threads(1)
        try:
            while not self._stop.is_set():
                self.work()
                self.count += 1
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join(timeout=60)
        assert not self._thread.is_alive() and not self.errors, self.errors


@pytest.mark.parametrize("work", [records_infer, records_train])
def test_a_model_is_replayed_while_another_thread_records(work: Any) -> None:
    model = make_model()
    jitted = jit(lambda x: model(x).detach())
    x = torch.ones(2, 3)
    expected = model(x).detach()
    for _ in range(3):
        assert_same(jitted(x), expected)
    with Beside(work) as beside:
        for _ in range(REPLAYS):
            assert_same(jitted(x), expected)
        while beside.count < 2 and not beside.errors:
            assert_same(jitted(x), expected)
    made = jitted.statistics()
    assert made.refusals == 0 and made.recordings == 1, jitted.explain()
    assert sum(key.eager_calls for key in made.keys) <= 4 and made.replays >= REPLAYS, jitted.explain()


def test_a_step_is_replayed_while_another_thread_records() -> None:
    models = [make_model().train(), make_model().train()]
    steps = [training(model, torch.optim.Adam(model.parameters(), lr=0.01)) for model in models]
    jitted = jit(steps[0])
    x, y = torch.ones(2, 3), torch.ones(2, 2)
    for _ in range(3):
        assert_same(jitted(x, y), steps[1](x, y))
    with Beside(records_infer) as beside:
        for call in range(300):
            assert_same(jitted(x, y), steps[1](x, y), f"call {call}")
        while beside.count < 2 and not beside.errors:
            assert_same(jitted(x, y), steps[1](x, y))
    made = jitted.statistics()
    assert made.refusals == 0 and made.recordings == 1 and sum(key.eager_calls for key in made.keys) <= 4, (
        jitted.explain()
    )


def test_two_threads_record_programs_of_one_class() -> None:
    with Beside(records_infer) as first, Beside(records_train) as second, Beside(records_infer) as third:
        while min(first.count, second.count, third.count) < 3:
            assert not (first.errors or second.errors or third.errors)
    for name in ("__getattribute__", "__setattr__"):
        assert not hasattr(vars(nn.Linear).get(name), "is_treeplays")
        assert not hasattr(vars(nn.Module).get(name), "is_treeplays")
