"""The honest list: what may surprise, each with the value that a user would expect in a comment.

First what treeplay gets right although it is easy to get wrong; at the end what it does not promise.
"""

from __future__ import annotations

import collections
import decimal
import itertools
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same, jit

pytestmark = pytest.mark.programs


def test_a_list_of_losses_kept_by_the_caller() -> None:
    jitted = jit(lambda x: x.pow(2).mean())
    losses = [jitted(torch.full((3,), float(n))) for n in range(5)]
    assert [float(loss) for loss in losses] == [0.0, 1.0, 4.0, 9.0, 16.0]  # not five times 16


def test_an_output_fed_back_while_the_old_one_is_in_use() -> None:
    jitted = jit(lambda h: h * 2 - 1)
    first = torch.full((2,), 3.0)
    second = jitted(jitted(jitted(first)))
    third = jitted(second)
    assert_same((second, third), (torch.full((2,), 17.0), torch.full((2,), 33.0)))


def test_the_same_buffer_refilled_by_the_caller() -> None:
    jitted, x = jit(lambda x: x * 2), torch.empty(2)
    found = [jitted(x.fill_(n)) for n in range(4)]
    assert [float(tensor[0]) for tensor in found] == [0.0, 2.0, 4.0, 6.0]


def test_arguments_swapped() -> None:
    jitted = jit(lambda a, b: a - 2 * b)
    a, b = torch.ones(2), torch.full((2,), 5.0)
    for _ in range(3):
        assert_same((jitted(a, b), jitted(b, a)), (torch.full((2,), -9.0), torch.full((2,), 3.0)))


def test_a_default_argument_that_is_a_tensor() -> None:
    def shift(x: torch.Tensor, by: torch.Tensor = torch.ones(2)) -> torch.Tensor:  # noqa: B008
        return x - by

    jitted = jit(shift)
    for _ in range(3):
        assert_same(jitted(torch.ones(2)), torch.zeros(2))
    shift.__defaults__[0].fill_(4)  # type: ignore[index]
    assert_same(jitted(torch.ones(2)), torch.full((2,), -3.0))


def test_a_mutable_default_argument() -> None:
    def remember(x: torch.Tensor, kept: dict[str, torch.Tensor] = {}) -> torch.Tensor:  # noqa: B006
        kept["last"] = x * 2
        return kept["last"] - 1

    jitted = jit(remember)
    for n in range(5):
        assert_same(jitted(torch.full((2,), float(n))), torch.full((2,), n * 2.0 - 1))
        assert_same(remember.__defaults__[0]["last"], torch.full((2,), n * 2.0))  # type: ignore[index]


def test_the_number_of_a_loop_changes_from_outside() -> None:
    times = {"n": 2}

    def repeat(x: torch.Tensor) -> torch.Tensor:
        for _ in range(times["n"]):
            x = x * 2 - 1
        return x

    jitted = jit(repeat)
    for n in (2, 2, 2, 4, 4, 1):
        times["n"] = n
        assert_same(jitted(torch.full((1,), 3.0)), torch.full((1,), 2.0**n * 2 + 1))


def test_a_python_flag_flipped_after_the_first_call() -> None:
    debug = True
    jitted = jit(lambda x: x * 100 if debug else x - 1)
    jitted(torch.ones(1))
    debug = False
    for _ in range(4):
        assert_same(jitted(torch.ones(1)), torch.zeros(1))


def test_evaluation_first_and_training_later() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    jitted = jit(model)
    with torch.no_grad():
        model.eval()
        for _ in range(3):
            assert_same(jitted(torch.ones(1, 2)), model(torch.ones(1, 2)))
        model.train()
        torch.manual_seed(3)
        found = [jitted(torch.ones(1, 2)) for _ in range(4)]
        torch.manual_seed(3)
        assert_same(found, [model(torch.ones(1, 2)) for _ in range(4)])


def test_a_model_replaced_by_another() -> None:
    holder = {"model": nn.Linear(2, 2)}
    jitted = jit(lambda x: holder["model"](x))
    with torch.no_grad():
        for call in range(6):
            if call in (2, 4):
                holder["model"] = nn.Linear(2, 2)
            x = torch.randn(1, 2)
            assert_same(jitted(x), holder["model"](x))


def test_an_optimizer_replaced_by_another() -> None:
    model = nn.Linear(2, 1)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    jitted, x = jit(step), torch.ones(1, 2)
    for _ in range(3):
        jitted(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    jitted(x)
    assert_same(model.weight.detach(), torch.full((1, 2), -13.0))  # not -4


def test_weights_changed_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    jitted = jit(model)
    with torch.no_grad():
        for n in range(5):
            model.weight.fill_(n)
            assert float(jitted(torch.ones(1, 1))) == n


def test_gradients_read_and_kept_between_steps() -> None:
    weight = nn.Parameter(torch.ones(2))

    def step(x: torch.Tensor) -> None:
        weight.grad = None
        (weight * x).sum().backward()

    jitted, kept = jit(step), []
    for n in range(5):
        jitted(torch.full((2,), float(n)))
        kept.append(weight.grad)
    assert [float(grad[0]) for grad in kept] == [0.0, 1.0, 2.0, 3.0, 4.0]  # each step made a new one


def test_gradients_zeroed_in_place_are_one_tensor() -> None:
    weight = nn.Parameter(torch.ones(2))

    def step(x: torch.Tensor) -> None:
        if weight.grad is not None:
            weight.grad.zero_()
        (weight * x).sum().backward()

    jitted, kept = jit(step), []
    for n in range(5):
        jitted(torch.full((2,), float(n)))
        kept.append(weight.grad)
    assert all(grad is kept[0] for grad in kept) and float(kept[0][0]) == 4.0


def test_a_batch_of_another_size_at_the_end_of_an_epoch() -> None:
    jitted = jit(lambda x: x.sum(0) - x[0])
    for rows in (4, 4, 4, 3) * 3:
        x = torch.randn(rows, 2)
        assert_same(jitted(x), x.sum(0) - x[0])
    assert jitted.statistics().recordings == 2


def test_a_tensor_kept_by_the_program_is_what_the_last_call_made() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = x * 2
            return x - 1

    model = Model()
    jitted, kept = jit(model), []
    for n in range(5):
        jitted(torch.full((1,), float(n)))
        kept.append(model.last)
    assert [float(tensor) for tensor in kept] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_a_replay_buffer_of_tensors_is_filled_eagerly() -> None:
    memory: collections.deque[torch.Tensor] = collections.deque(maxlen=3)

    def act(x: torch.Tensor) -> torch.Tensor:
        memory.append(x * 2)
        return x - 1

    jitted = jit(act, on_refusal="eager")
    with pytest.warns(UserWarning, match="memory"):
        for n in range(5):
            jitted(torch.full((1,), float(n)))
    assert [float(tensor) for tensor in memory] == [4.0, 6.0, 8.0]


def test_a_data_loader_inside_the_program() -> None:
    loader = iter([torch.full((1,), float(n)) for n in range(10)])
    jitted = jit(lambda: next(loader) * 2, on_refusal="eager")
    with pytest.warns(UserWarning, match="pass it as an argument"):
        found = [float(jitted()) for _ in range(4)]
    assert found == [0.0, 2.0, 4.0, 6.0]


def test_a_resumed_generator_of_random_numbers() -> None:
    jitted, x = jit(lambda x: x + torch.rand(2)), torch.zeros(2)
    for _ in range(3):
        jitted(x)
    state = torch.get_rng_state()
    first = jitted(x)
    torch.set_rng_state(state)
    assert_same(jitted(x), first)


def test_a_result_modified_while_it_aliases_state() -> None:
    model = nn.Linear(2, 2, bias=False)
    jitted = jit(lambda: model.weight.detach())
    for _ in range(3):
        jitted()
    jitted().zero_()
    assert float(model.weight.detach().abs().sum()) == 0.0  # as in eager: it is the weight


def test_helpers_redefined_in_a_notebook_cell() -> None:
    scope: dict[str, Any] = {"torch": torch}
    cell = compile("def helper(x): return x * 2\ndef program(x): return helper(x) - 1\n", "/notebook/cell.py", "exec")
    exec(cell, scope)
    jitted = jit(scope["program"])
    for _ in range(3):
        assert_same(jitted(torch.ones(1)), torch.ones(1))
    exec(compile("def helper(x): return x * 7\n", "/notebook/cell2.py", "exec"), scope)
    assert_same(jitted(torch.ones(1)), torch.full((1,), 6.0))


# --- not promised -----------------------------------------------------------------------------------------------


def test_prints_and_other_effects_of_python_happen_only_while_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    def talk(x: torch.Tensor) -> torch.Tensor:
        print("called")
        return x * 2

    jitted = jit(talk)
    for _ in range(5):
        jitted(torch.ones(1))
    assert capsys.readouterr().out.count("called") == 2  # eager: 5; here the eager call and the trace


def test_a_number_behind_a_c_object_freezes_if_it_changes_after_the_second_call() -> None:
    jitted = jit(lambda x: x * len(str(decimal.Decimal(1) / 3)))
    found = []
    with decimal.localcontext() as context:
        for call in range(4):
            context.prec = 5 + call // 2
            found.append(float(jitted(torch.ones(1))) - 7)
    assert found == [0.0, 0.0, 0.0, 0.0]  # eager: 0, 0, 1, 1. Pass such numbers as arguments.


def test_an_iterator_is_refused_before_it_loses_an_item() -> None:
    numbers = itertools.chain([1.0, 1.0], itertools.repeat(9.0))
    taken = {"next": numbers.__next__}
    jitted = jit(lambda x: x * taken["next"](), on_refusal="eager")
    with pytest.warns(UserWarning, match="can take items from"):
        found = [float(jitted(torch.ones(1))) for _ in range(4)]
    assert found == [1.0, 1.0, 9.0, 9.0]


def test_a_result_of_a_step_has_no_graph() -> None:
    weight = nn.Parameter(torch.ones(2))

    def step(x: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        loss = (weight * x).sum()
        loss.backward()
        return loss

    jitted = jit(step)
    # Eager: a graph already freed.
    assert [jitted(torch.ones(2)).requires_grad for _ in range(3)] == [
        True,
        False,
        False,
    ]


def test_the_settings_at_the_time_of_recording_count() -> None:
    jitted = jit(lambda x: x * 2)
    with treeplay.settings.changed(max_recordings_per_program=1):
        for size in (1, 2, 1, 2):
            jitted(torch.ones(size))
    assert jitted.statistics().dropped == 3
