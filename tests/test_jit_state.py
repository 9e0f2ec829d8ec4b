"""State that a program reaches: followed where it lies, noticed when it is reassigned, never stale."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import Twins, assert_same, assert_same_state, jit, training


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3), torch.randn(4, 2)


def pair_of(make: Callable[..., Any] | None = None) -> Twins:
    model = net()
    make = make or (lambda p: torch.optim.AdamW(p, lr=0.05))
    return Twins(training, model, make(model.parameters()))


CHANGES: dict[str, Callable[[Any, Any], None]] = {
    "p.data = new": lambda m, o: setattr(m[0].weight, "data", m[0].weight.data * 2),
    "p.data = other strides": lambda m, o: setattr(m[0].weight, "data", m[0].weight.data.t().contiguous().t()),
    "p.copy_": lambda m, o: m[0].weight.data.copy_(m[0].weight.data * 2),
    "a new parameter": lambda m, o: setattr(m[0], "bias", nn.Parameter(torch.ones(4))),
    "no parameter": lambda m, o: setattr(m[0], "bias", None),
    "a swapped submodule": lambda m, o: m.__setitem__(2, nn.ReLU()),
    "a swapped layer": lambda m, o: m.__setitem__(3, copy.deepcopy(m[3])),
    "an appended submodule": lambda m, o: m.append(nn.Tanh()),
    "a removed submodule": lambda m, o: m.__delitem__(2),
    "another buffer": lambda m, o: setattr(m[1], "running_mean", torch.ones(4)),
    "grad set": lambda m, o: setattr(m[0].weight, "grad", torch.ones(4, 3)),
    "grad gone": lambda m, o: setattr(m[0].weight, "grad", None),
    "frozen": lambda m, o: m[0].weight.requires_grad_(False),
    "model state loaded": lambda m, o: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
    "model state assigned": lambda m, o: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True),
    "optimizer state loaded": lambda m, o: o.load_state_dict(copy.deepcopy(o.state_dict())),
    "optimizer state cleared": lambda m, o: o.state.clear(),
    "one moment replaced": lambda m, o: o.state[m[0].weight].update(exp_avg=torch.ones(4, 3)),
    "eval mode": lambda m, o: m.eval(),
    "another momentum": lambda m, o: setattr(m[1], "momentum", 0.5),
    "a forward hook": lambda m, o: m[0].register_forward_hook(lambda mod, args, out: out * 3),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_between_calls_is_never_stale(what: str) -> None:
    pair = pair_of()
    pair.calls(3, batch)
    for owners in (pair.owners, pair.eager_owners):
        torch.manual_seed(1)
        CHANGES[what](*owners)
    pair.calls(4, batch)
    assert pair.statistics.recordings <= 3


def test_a_change_between_the_first_two_calls_is_not_stale_either() -> None:
    for what in ("p.data = new", "a new parameter", "another buffer", "eval mode", "a swapped submodule"):
        pair = pair_of(lambda p: torch.optim.SGD(p, lr=0.1))
        pair.call(*batch())
        for owners in (pair.owners, pair.eager_owners):
            CHANGES[what](*owners)
        pair.calls(4, batch)


def test_a_model_moved_to_float64_is_recorded_anew() -> None:
    pair = pair_of(lambda p: torch.optim.SGD(p, lr=0.1))
    pair.calls(3, batch)
    for owners in (pair.owners, pair.eager_owners):
        owners[1].zero_grad()
        owners[0].to(torch.float64)
    pair.calls(3, lambda: tuple(t.double() for t in batch()))
    assert pair.statistics.recordings == 2


def test_reassigning_on_each_call_stays_right_and_bounded() -> None:
    model = nn.Linear(2, 2)
    jitted = jit(model, on_refusal="eager")
    with treeplay.settings.changed(max_rerecordings=3), torch.no_grad():
        for call in range(12):
            model.bias = nn.Parameter(torch.full((2,), float(call))) if call % 2 else None
            x = torch.randn(1, 2)
            assert_same(jitted(x), F.linear(x, model.weight, model.bias))
    assert jitted.statistics().recordings <= 5


def test_a_new_parameter_of_the_same_layout_needs_no_new_recording() -> None:
    model = nn.Linear(2, 2)
    jitted = jit(model)
    with torch.no_grad():
        for call in range(6):
            model.weight = nn.Parameter(torch.full((2, 2), float(call)))
            assert_same(jitted(torch.ones(1, 2)), model(torch.ones(1, 2)))
    assert jitted.statistics().recordings == 1


def test_state_dicts_save_and_load_between_calls() -> None:
    pair = pair_of()
    pair.calls(3, batch)
    saved = []
    for model, optimizer in (pair.owners, pair.eager_owners):
        file = io.BytesIO()
        torch.save((model.state_dict(), optimizer.state_dict()), file)
        file.seek(0)
        saved.append(torch.load(file))
    pair.calls(2, batch)
    for (model, optimizer), (weights, moments) in zip((pair.owners, pair.eager_owners), saved, strict=True):
        model.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    pair.calls(3, batch)


def test_evaluation_between_steps_sees_the_trained_weights() -> None:
    pair = pair_of()
    evaluate = jit(pair.owners[0])
    for _ in range(5):
        pair.call(*batch())
        x = torch.randn(5, 3)
        for owners in (pair.owners, pair.eager_owners):
            owners[0].eval()
        with torch.no_grad():
            assert_same(evaluate(x), pair.eager_owners[0](x))
        for owners in (pair.owners, pair.eager_owners):
            owners[0].train()
    assert evaluate.statistics().replays == 4


def test_train_and_eval_have_a_recording_each() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    twin, jitted = copy.deepcopy(model), jit(model)
    with torch.no_grad():
        for call in range(8):
            model.train(call % 2 == 0)
            twin.train(call % 2 == 0)
            x = torch.randn(4, 3)
            assert_same(jitted(x), twin(x))
    assert_same_state((model,), (twin,))
    assert jitted.statistics().recordings == 2 and jitted.statistics().replays == 6


def test_tensors_of_a_closure_are_updated_in_place_and_may_be_rebound() -> None:
    total, scale = torch.zeros(2), torch.ones(2)

    def add(x: torch.Tensor) -> torch.Tensor:
        total.mul_(0.5).add_(x * scale)
        return total - x

    jitted = jit(add)
    expected = torch.zeros(2)
    for call in range(6):
        if call == 4:
            scale = torch.full((2,), 7.0)
        x = torch.randn(2)
        expected = expected * 0.5 + x * scale
        assert_same(jitted(x), expected - x)
        assert_same(total, expected)
    assert jitted.statistics().recordings == 1


def test_a_rebound_closure_variable_is_a_slot() -> None:
    hidden = torch.zeros(3)

    def roll(x: torch.Tensor) -> torch.Tensor:
        nonlocal hidden
        before, hidden = hidden, torch.tanh(hidden * 2 - x)
        return before - hidden

    jitted = jit(roll)
    expected = torch.zeros(3)
    for _ in range(6):
        x = torch.randn(3)
        following = torch.tanh(expected * 2 - x)
        assert_same(jitted(x), expected - following)
        expected = following
        assert_same(hidden, expected)


_memory = torch.zeros(3)


def test_a_rebound_global_is_a_slot() -> None:
    def roll(x: torch.Tensor) -> torch.Tensor:
        global _memory
        _memory = _memory * 2 - x
        return _memory + 1

    global _memory
    _memory = expected = torch.zeros(3)
    jitted = jit(roll)
    for _ in range(5):
        x = torch.randn(3)
        expected = expected * 2 - x
        assert_same(jitted(x), expected + 1)
        assert_same(_memory, expected)
    assert jitted.statistics().replays == 4


def test_state_in_lists_dicts_and_attributes_is_found() -> None:
    class Holder:
        def __init__(self) -> None:
            self.parts = [torch.ones(2), {"deep": (torch.full((2,), 2.0),)}]
            self._private = torch.full((2,), 3.0)

    holder = Holder()

    def use(x: torch.Tensor) -> torch.Tensor:
        holder.parts[0].add_(x)
        holder._private.sub_(holder.parts[1]["deep"][0])
        return holder.parts[0] * holder._private

    jitted, first, private = jit(use), torch.ones(2), torch.full((2,), 3.0)
    for _ in range(5):
        x = torch.randn(2)
        first, private = first + x, private - 2
        assert_same(jitted(x), first * private)
    holder.parts[0] = first = torch.zeros(2)
    assert_same(jitted(torch.zeros(2)), first * (private - 2))


def test_an_entry_replaced_in_a_dict_of_tensors_is_followed() -> None:
    cache: dict[str, torch.Tensor] = {"key": torch.zeros(2)}

    def extend(x: torch.Tensor) -> torch.Tensor:
        cache["key"] = cache["key"] * 3 - x
        return cache["key"] + 1

    jitted, expected = jit(extend), torch.zeros(2)
    for call in range(6):
        if call == 4:
            cache["key"] = expected = torch.full((2,), 9.0)
        x = torch.randn(2)
        expected = expected * 3 - x
        assert_same(jitted(x), expected + 1)


def test_a_dict_that_grew_is_noticed() -> None:
    parts = {"a": torch.ones(2)}
    jitted = jit(lambda x: x - sum(parts.values()))
    x = torch.randn(2)
    for _ in range(3):
        assert_same(jitted(x), x - (0 + parts["a"]))
    parts["b"] = torch.full((2,), 5.0)
    assert_same(jitted(x), x - (0 + parts["a"] + parts["b"]))


def test_a_list_that_grew_is_noticed() -> None:
    parts = [torch.ones(2)]
    jitted = jit(lambda x: x - sum(parts))
    x = torch.randn(2)
    for _ in range(3):
        jitted(x)
    parts.append(torch.full((2,), 5.0))
    assert_same(jitted(x), x - (0 + parts[0] + parts[1]))


def test_a_replaced_function_of_the_program_is_noticed() -> None:
    activation: Callable[..., torch.Tensor] = torch.relu
    jitted = jit(lambda x: activation(x) - 1)
    x = torch.randn(4)
    for _ in range(3):
        assert_same(jitted(x), torch.relu(x) - 1)
    activation = torch.tanh
    assert_same(jitted(x), torch.tanh(x) - 1)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize("name", ["forward", "other"])
def test_a_replaced_method_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Doubled()
    jitted = jit((lambda x: module(x)) if name == "forward" else (lambda x: module.other(x)))
    for _ in range(3):
        assert_same(jitted(torch.ones(2)), torch.full((2,), 2.0))
    monkeypatch.setattr(Doubled, name, lambda self, x: x * 3)
    for _ in range(3):
        assert_same(jitted(torch.ones(2)), torch.full((2,), 3.0))
    if name == "forward":
        module.forward = lambda x: x * 4  # type: ignore[method-assign]
        for _ in range(3):
            assert_same(jitted(torch.ones(2)), torch.full((2,), 4.0))


def test_a_tensor_that_was_none_is_noticed() -> None:
    class Masked:
        mask: torch.Tensor | None = None

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x - 1 if self.mask is None else x * self.mask

    masked = Masked()
    jitted = jit(masked)
    x = torch.randn(4)
    for _ in range(3):
        assert_same(jitted(x), x - 1)
    masked.mask = torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert_same(jitted(x), x * masked.mask)


def test_objects_with_slots_hold_state_too() -> None:
    class Slotted:
        __slots__ = ("scale", "weight")

    slotted = Slotted()
    slotted.scale, slotted.weight = 2.0, torch.ones(3)

    def use(x: torch.Tensor) -> torch.Tensor:
        slotted.weight.add_(1)
        return x * slotted.scale - slotted.weight

    jitted, x = jit(use), torch.randn(3)
    for call in range(4):
        assert_same(jitted(x), x * 2.0 - torch.full((3,), 2.0 + call))
    slotted.scale = 5.0
    assert_same(jitted(x), x * 5.0 - slotted.weight)


def test_private_slots_hold_state_too() -> None:
    class Private:
        __slots__ = ("__count", "__last")

        def __init__(self) -> None:
            self.__count, self.__last = 2.0, torch.zeros(3)

        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.__last = x * self.__count - self.__last
            return x - 1

        def change(self) -> torch.Tensor:
            self.__count += 1
            return self.__last

    mine, theirs, x = Private(), Private(), torch.randn(3)
    jitted = jit(mine.step)
    for call in range(6):
        assert_same(jitted(x * call), theirs.step(x * call))
        assert_same(mine.change(), theirs.change()) if call % 3 == 2 else None
    assert jitted.statistics().replays >= 2


def test_gradients_of_arguments_reach_the_callers_tensors() -> None:
    weight = torch.randn(3)

    def attack(x: torch.Tensor) -> None:
        (x * weight).pow(3).sum().backward()

    jitted = jit(attack)
    for _ in range(5):
        x = torch.randn(3, requires_grad=True)
        jitted(x)
        twin = x.detach().clone().requires_grad_()
        attack(twin)
        assert_same(x.grad, twin.grad)


def test_state_passed_as_an_argument_is_the_argument() -> None:
    weight = torch.randn(3)
    jitted = jit(lambda x: x * weight - x)
    for _ in range(3):
        assert_same(jitted(weight), weight * weight - weight)
    other = torch.randn(3)
    for _ in range(3):
        assert_same(jitted(other), other * weight - other)
        assert_same(jitted(weight), weight * weight - weight)


def test_a_module_passed_as_an_argument_is_followed() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    jitted = jit(lambda model, x: model(x) - x)
    with torch.no_grad():
        for call in range(8):
            model, x = (first, second)[call % 2], torch.randn(1, 2)
            model.weight.mul_(0.9)
            assert_same(jitted(model, x), model(x) - x)
    assert jitted.statistics().replays == 6


def test_a_recurrent_network_carries_its_state() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(2, 3)
            self.hidden: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out, hidden = self.rnn(x, self.hidden)
            self.hidden = hidden.detach()
            return out

    cell = Cell()
    twin, jitted = copy.deepcopy(cell), jit(cell)
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(4, 2)
            assert_same(jitted(x), twin(x))
            assert_same(cell.hidden, twin.hidden)
    assert jitted.statistics().replays >= 4


def test_moving_averages_of_weights_are_kept() -> None:
    def averaging(model: nn.Module, average: Any, optimizer: Any) -> Callable[..., None]:
        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            average.update_parameters(model)

        return step

    model = nn.Linear(3, 2)
    decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=decay)
    pair = Twins(averaging, model, average, torch.optim.SGD(model.parameters(), lr=0.1), on_refusal="eager")
    pair.calls(5, batch)


def _descends(model: nn.Module) -> Callable[..., torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for p in model.parameters():
            p.data -= 0.1 * p.grad.data  # type: ignore[union-attr]
        return loss.detach()

    return step


def _decays(model: nn.Module) -> Callable[..., torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        model.weight.data[:1] *= 2
        model.weight.data = model.weight.data  # what Python makes of the line before
        model.bias.data /= 3
        return x + model.bias.detach() * model.weight.detach()[0, 0]

    return step


def _perturbs(model: nn.Module) -> Callable[..., torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        delta = torch.zeros(3, requires_grad=True)
        for _ in range(2):
            model(x + delta).sum().backward()
            delta.data += 0.1 * delta.grad.sign()  # type: ignore[union-attr]
            delta.grad = None
        model.zero_grad()
        return delta.detach()

    return step


@pytest.mark.parametrize("make", [_descends, _decays, _perturbs])
def test_data_that_is_written_and_assigned_to_itself_is_written_in_place(make: Callable[..., Any]) -> None:
    pair = Twins(make, nn.Linear(3, 3))
    addresses = [p.data_ptr() for p in pair.owners[0].parameters()]
    for at in range(6):
        pair.call(torch.randn(2, 3))
        if at == 3:
            for net in (pair.owners[0], pair.eager_owners[0]):
                net.weight.data = net.weight.data * 2
                addresses[0] = pair.owners[0].weight.data_ptr()
    assert [p.data_ptr() for p in pair.owners[0].parameters()] == addresses
    assert pair.statistics.replays == 5


@pytest.mark.parametrize("other", [torch.clone, torch.t, lambda w: w[[1, 0, 2]], lambda w: w[None]])
def test_data_that_is_replaced_by_other_memory_or_another_view_is_refused(other: Callable[..., Any]) -> None:
    model = nn.Linear(3, 3)

    def program(x: torch.Tensor) -> torch.Tensor:
        model.weight.data = other(model.weight.data)
        return x

    jitted = jit(program)
    jitted(torch.ones(3))
    with pytest.raises(treeplay.Refusal, match="data = "):
        jitted(torch.ones(3))


def _casts(model: nn.Module) -> Callable[..., torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad(set_to_none=False)
        model.to(torch.float32).cpu()
        loss = model(x).square().mean() * 2 - 1
        loss.backward()
        model.float()
        return loss.detach()

    return step


def test_a_module_that_has_its_dtype_and_device_already_is_left_as_it_is() -> None:
    pair = Twins(_casts, nn.Linear(3, 3))
    pair.calls(5, lambda: (torch.randn(2, 3),))
    assert pair.statistics.replays == 4


def test_a_module_that_has_another_dtype_one_day_gets_its_own_back() -> None:
    pair = Twins(_casts, nn.Linear(3, 3), on_refusal="eager")
    pair.calls(3, lambda: (torch.randn(2, 3),))
    for (model,) in (pair.owners, pair.eager_owners):
        model.requires_grad_(False).double().requires_grad_()
        model.zero_grad()
    pair.calls(3, lambda: (torch.randn(2, 3),))
    assert pair.statistics.replays >= 3
