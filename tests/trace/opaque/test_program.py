"""Opaque programs: recorded as they are, with what they could have read watched, and Python left as it was."""

from __future__ import annotations

import copy
import decimal
import gc
import random
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import assert_same, assert_same_state, training
from support.opaque import Captured, call_of, inputs_of, moved, recorded_run, rehearsed
from treeplay.errors import InternalError
from treeplay.trace.opaque.program import prepare
from treeplay.values.signature import State

library = torch.library.Library("treeplay_test_opaque", "DEF")
library.define("halve_and_shift(Tensor x, float by) -> Tensor")
library.define("scale_(Tensor(a!) x, float by) -> ()")
library.impl("halve_and_shift", lambda x, by: x / 2 - by, "CPU")
library.impl("scale_", lambda x, by: [x.mul_(by)].clear(), "CPU")
ops: Any = torch.ops.treeplay_test_opaque  # neither has a rule for running without data


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (4, 3)))


def agree(program: Any, twin: Any, make_args: Any, calls: int = 6) -> Captured:
    """Calls of the recorded program and of its twin, which give the same."""
    captured = Captured(program)
    for _ in range(calls):
        args = make_args()
        assert_same(captured(*copy.deepcopy(args)), twin(*args))
    return captured


def test_a_custom_operator_without_a_fake_rule_is_recorded() -> None:
    def use(x: torch.Tensor) -> torch.Tensor:
        return ops.halve_and_shift(x, 0.5) * 3 - x

    with pytest.raises(treeplay.Refusal, match="no rule for running without data"):
        jitted = treeplay.jit(use, on_refusal="raise")
        jitted(x()), jitted(x())
    captured = agree(use, use, lambda: (x(),))
    assert len(captured.recordings) == 1 and captured.recordings[0].replays == 5


def test_state_is_read_where_it_lies_and_arguments_may_move() -> None:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        captured = agree(model, model, lambda: (x(),))
        model.weight.mul_(2)
        value = x()
        assert_same(captured(value), model(value))
    [recording] = captured.recordings
    assert len(recording.movable) == 1 and "weight" not in str(recording.movable)


def test_a_whole_step_with_a_custom_operator_trains_like_eager() -> None:
    def make(model: nn.Module, optimizer: Any) -> Any:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            with torch.no_grad():
                for param in model.parameters():
                    ops.scale_(param.grad, 0.5)
            optimizer.step()
            return loss.detach()

        return step

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    owners = model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    twins = copy.deepcopy(owners)
    captured, eager, kept = Captured(make(*owners)), make(*twins), []
    for _ in range(6):
        args = x(4, 3), x(4, 2)
        assert_same(captured(*args), eager(*args))
        assert_same_state(owners, twins)
        kept.append((owners[0][0].weight.grad, twins[0][0].weight.grad))
    assert all(torch.equal(mine, theirs) for mine, theirs in kept)  # gradients of each call stay what they were
    [recording] = captured.recordings
    assert recording.replays == 5 and sum(".grad" in name for name in recording.movable) == 4


def test_gradients_that_are_added_up_stay_where_they_are() -> None:
    model = nn.Linear(3, 2)
    twin = copy.deepcopy(model)

    def make(model: nn.Module) -> Any:
        def add(x: torch.Tensor) -> None:
            (model(x) ** 2).sum().backward()

        return add

    captured, eager = Captured(make(model)), make(twin)
    for call in range(8):
        value = x()
        captured(value), eager(value)
        assert_same_state((model,), (twin,))
        if call == 5:
            for own in (model, twin):
                own.zero_grad()
    # The first call made the gradients; `zero_grad` took them away, and the call after it made them anew, elsewhere.
    assert len(captured.recordings) == 2 and captured.recordings[0].replays == 6


def test_python_is_left_as_it_was_after_each_run() -> None:
    model = nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = training(model, optimizer)
    step(x(), x())
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    grads = [param.grad for param in model.parameters()]
    versions = [tensor._version for tensor in model.state_dict().values()]
    prepared = prepare(step, call_of(x(), x()))
    for run in range(3):
        if run == 0:
            program = rehearsed(prepared)
        else:
            recorded_run(program, moved(program, inputs_of(program, prepared)))
        assert_same(before, copy.deepcopy((model.state_dict(), optimizer.state_dict())))
        assert all(a is param.grad for a, param in zip(grads, model.parameters(), strict=True))
        assert versions == [tensor._version for tensor in model.state_dict().values()]
    signature = program.signature
    assert {"weight", "bias"} <= {signature.inputs[at].name.rpartition(".")[2] for at in signature.mutated}


def test_results_are_the_input_a_view_of_it_or_fresh() -> None:
    state = torch.zeros(3)

    def use(x: torch.Tensor, n: int) -> Any:
        state.add_(1)
        made = x * n - state
        return {"same": x, "view": x[1:], "made": made, "part": made[0], "state": state, "row": state[1], "n": n}

    captured, kept = Captured(use), []
    for _ in range(4):
        value = x()
        found = captured(value, 3)
        expected = value * 3 - state
        assert found["same"] is value and found["view"].data_ptr() == value[1:].data_ptr()
        assert found["state"] is state and found["row"].data_ptr() == state[1].data_ptr()
        assert found["part"].data_ptr() == found["made"].data_ptr() and found["n"] == 3
        kept.append((found["made"], expected))
    assert all(torch.equal(made, expected) for made, expected in kept)


def test_a_slice_of_something_larger_is_returned_with_its_memory() -> None:
    def use(x: torch.Tensor) -> Any:
        big = x * 2 - 1
        return big[1:, 1], big[:2]

    captured = agree(use, use, lambda: (x(),))
    a, b = captured(x())
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and a.storage_offset() == 4


def test_results_read_memory_as_another_dtype() -> None:
    def use(x: torch.Tensor) -> Any:
        made = x * 2 - 1
        return made, made[1:].view(torch.int32), x.view(torch.int16)[2:]

    captured = agree(use, use, lambda: (x(),))
    value = x()
    made, bits, halves = captured(value)
    assert bits.data_ptr() == made[1].data_ptr() and halves.data_ptr() == value[2].data_ptr()


def test_memory_handed_on_by_another_name_is_still_the_arguments() -> None:
    def use(x: torch.Tensor) -> Any:
        return torch.from_dlpack(x)[1:] if x.dim() == 2 else x

    captured = Captured(use)
    for _ in range(3):
        value = x()
        assert captured(value).data_ptr() == value[1].data_ptr()


def test_a_slot_that_the_program_rebinds_is_written() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = torch.zeros(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.hidden = self.hidden * 0.5 - x
            return self.hidden * 2

    model, twin = Recurrent(), Recurrent()
    captured, earlier = Captured(model), []
    for _ in range(6):
        value = x()
        assert_same(captured(value), twin(value))
        assert_same(model.hidden, twin.hidden)
        earlier.append((model.hidden, model.hidden.clone()))
    assert all(torch.equal(now, then) for now, then in earlier)
    assert captured.recordings[0].replays == 5 and len(captured.recordings[0].movable) == 2


def test_plain_values_are_watched() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ops.halve_and_shift(x, self.by)

    model = Scaled()
    captured = Captured(model)
    for call in range(6):
        model.by = 2.0 if call < 4 else 3.0
        value = x()
        assert_same(captured(value), model(value))
    assert len(captured.recordings) == 2


@pytest.mark.parametrize("is_tensor", [True, False])
def test_the_learning_rate_is_watched_unless_it_is_a_tensor(is_tensor: bool) -> None:
    class Plain(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for param in self.param_groups[0]["params"]:
                param.sub_(param.grad * self.param_groups[0]["lr"])

    model = nn.Linear(3, 2)
    optimizer = Plain(model.parameters(), {"lr": torch.tensor(0.1) if is_tensor else 0.1})
    twins = copy.deepcopy((model, optimizer))
    captured, eager = Captured(training(model, optimizer)), training(*twins)
    for call in range(6):
        for group in (optimizer.param_groups[0], twins[1].param_groups[0]):
            if is_tensor:
                group["lr"].fill_(0.1 / (call // 3 + 1))
            else:
                group["lr"] = 0.1 / (call // 3 + 1)
        args = x(4, 3), x(4, 2)
        assert_same(captured(*args), eager(*args))
        assert_same_state((model,), (twins[0],))
    assert len(captured.recordings) == (1 if is_tensor else 2)


def test_random_numbers_are_drawn_anew() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.randn(3)

    captured = Captured(noisy)
    for _ in range(4):
        value, state = x(), torch.get_rng_state()
        expected = noisy(value)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        assert_same(captured(value), expected)
        assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("ambient", [True, False])
def test_modes_of_the_call_hold_in_each_run(ambient: bool) -> None:
    model = nn.Linear(3, 2)

    def use(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=not ambient or torch.is_autocast_enabled("cpu")):
            found = model(x)
            return found.detach() if found.requires_grad is not ambient else found.float()

    captured = Captured(use)
    with torch.set_grad_enabled(not ambient), torch.autocast("cpu", torch.bfloat16, enabled=ambient):
        for _ in range(4):
            value = x()
            found = captured(value)
            assert found.dtype is torch.bfloat16
            assert_same(found, use(value))


def test_a_tensor_that_is_passed_and_held_is_pinned() -> None:
    model = nn.Linear(3, 3)

    def use(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight - model.weight * 0.5).detach()

    captured = Captured(use)
    for _ in range(3):
        value = x()
        assert_same(captured(model.weight, value), use(model.weight, value))
    assert all("Linear" not in name and name.startswith("$[0][1]") for name in captured.recordings[0].movable)


def test_arguments_that_share_memory_are_pinned() -> None:
    both = torch.zeros(6)

    def use(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2 - a

    captured = Captured(use)
    for _ in range(3):
        twin = both.clone()
        assert_same(captured(both[0:4], both[2:6]), use(twin[0:4], twin[2:6]))
        assert_same(both, twin)
    assert not captured.recordings[0].movable


def test_a_python_value_that_each_call_changes_is_refused() -> None:
    counts = {"calls": 0}

    def use(x: torch.Tensor) -> torch.Tensor:
        counts["calls"] += 1
        return x * 2

    prepared = prepare(use, call_of(x()))
    with pytest.raises(treeplay.Refusal, match="changes a Python value from 0 to 1"):
        rehearsed(prepared)
    assert counts == {"calls": 0}


def test_a_program_that_draws_in_python_is_refused() -> None:
    def use(x: torch.Tensor) -> torch.Tensor:
        return x * random.random()

    prepared = prepare(use, call_of(x()))
    state = random.getstate()
    with pytest.raises(treeplay.Refusal, match="freeze what it drew"):
        rehearsed(prepared)
    assert random.getstate() == state


def test_a_result_that_needs_gradients_is_refused() -> None:
    model = nn.Linear(3, 2)
    prepared = prepare(model, call_of(x()))
    with pytest.raises(treeplay.Refusal, match="needs gradients"):
        rehearsed(prepared)


def test_a_program_that_differs_from_run_to_run_is_refused() -> None:
    hidden = decimal.Context(prec=1)  # nobody sees it change

    def use(x: torch.Tensor) -> Any:
        hidden.prec += 1
        return [x * 2 for _ in range(1 + hidden.prec % 2)]

    prepared = prepare(use, call_of(x()))
    program = rehearsed(prepared)
    with pytest.raises(treeplay.Refusal, match="does not do the same"):
        recorded_run(program, inputs_of(program, prepared))


def test_an_unrecorded_run_has_its_effects_and_leaves_python_as_it_was() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    twins = copy.deepcopy((model, optimizer))
    step, eager = training(model, optimizer), training(*twins)
    for _ in range(2):
        args = x(4, 3), x(4, 2)
        step(*args), eager(*args)
    program = rehearsed(prepare(step, call_of(*args)))
    args = x(4, 3), x(4, 2)
    state = [item.source.place.read() for item in program.signature.inputs if isinstance(item.source, State)]
    grad = model.weight.grad
    outputs = program.plain([*args, *state])
    expected = eager(*args)
    assert model.weight.grad is grad
    assert_same([model.weight, outputs[0].flatten()[0]], [twins[0].weight, expected])
    assert_same(optimizer.state_dict()["state"], twins[1].state_dict()["state"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_an_unrecorded_run_is_under_the_autocast_of_its_preparation_alone(dtype: torch.dtype) -> None:
    def use(x: torch.Tensor) -> torch.Tensor:
        return x @ x.mT - x.sum()

    value = x()
    with torch.autocast("cpu", torch.float16, enabled=dtype is torch.float16):
        program, expected = rehearsed(prepare(use, call_of(value))), use(value)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(program.plain([value]), [expected])


def test_state_that_is_pinned_cannot_be_replaced_in_a_run() -> None:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        prepared = prepare(model, call_of(x()))
        program = rehearsed(prepared)
        inputs = inputs_of(program, prepared)
        others = [tensor if at in program.movable else tensor.clone() for at, tensor in enumerate(inputs)]
        with pytest.raises(InternalError, match="weight is read where it lies"):
            recorded_run(program, others)


def test_a_later_recording_is_made_over_the_state_of_that_day() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    twins = copy.deepcopy((model, optimizer))
    step, eager = training(model, optimizer), training(*twins)
    history: list[int] = []
    step.history = history  # type: ignore[attr-defined]
    args = x(4, 3), x(4, 2)
    step(*args), eager(*args)
    program = rehearsed(prepare(step, call_of(*args)))
    history.append(1)
    for _ in range(2):
        args = x(4, 3), x(4, 2)
        step(*args), eager(*args)  # calls meanwhile: gradients lie elsewhere now
    state = [item.source.place.read() for item in program.signature.inputs if isinstance(item.source, State)]
    tape, outputs = recorded_run(program, [*args, *state])
    assert history == [1] and any(model.weight.grad is tensor for tensor in state)
    with torch.no_grad():
        tape.replay()
    expected = eager(*args)
    assert_same([model.weight, outputs[0].flatten()[0]], [twins[0].weight, expected])


def test_nothing_of_a_call_is_kept_alive() -> None:
    captured = Captured(lambda x: x * 2)
    value = x()
    reference = weakref.ref(value)
    captured(value), captured(value)
    del value
    gc.collect()
    assert reference() is None


def test_a_compiled_model_is_recorded_while_there_are_other_threads() -> None:
    """Whose run then notes what it reads, of the compiler's own objects too."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled, stop = torch.compile(model, backend="eager"), threading.Event()
    threading.Thread(target=stop.wait, daemon=True).start()
    try:
        with torch.no_grad():
            captured = Captured(lambda x: compiled(x), plain_calls=2)
            for _ in range(5):
                value = x()
                assert torch.equal(captured(value), model(value))
    finally:
        stop.set()
    assert len(captured.recordings) == 1 and captured.recordings[0].replays == 3


def test_other_modules_are_still_compiled_after_a_compiled_model_was_recorded(fresh_dynamo: None) -> None:
    compiled, graphs = torch.compile(nn.Sequential(nn.Linear(3, 4)), backend="eager"), list[Any]()
    captured = Captured(lambda x: compiled(x), plain_calls=2)
    other = torch.compile(nn.Sequential(nn.Linear(3, 5)), backend=lambda graph, _: graphs.append(graph) or graph)
    with torch.no_grad():
        for _ in range(3):
            captured(x())
        other(x())
    assert len(graphs) == 1
