"""Programs whose results the caller differentiates: values, gradients, errors and state are eager's."""

from __future__ import annotations

import contextlib
import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import treeplay
from support import assert_same, assert_same_state, jit
from support.gradients import (
    BACKWARDS,
    PROGRAMS,
    Pair,
    after_a_change_that_matters,
    apart,
    change_what_only_one_needs,
    first_only,
    in_turn_and_again,
    parameter,
    same_twice_without_retaining,
    state,
    three,
    train,
)
from treeplay.tree.tiers import compile_thread


@pytest.mark.parametrize("needs_grad", [False, True], ids=["data", "argument that needs a gradient"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_and_its_gradients_are_eagers(name: str, needs_grad: bool) -> None:
    torch.manual_seed(1)
    make, owners = PROGRAMS[name]
    pair = Pair(make, *owners())
    for _ in range(4):
        pair.act(train, torch.randn(4, 3, requires_grad=needs_grad))
    statistics = pair.jitted.statistics()
    assert statistics.replays == 3
    assert [recording.kind for key in statistics.keys for recording in key.recordings] == ["differentiable"]


@pytest.mark.compile
@pytest.mark.parametrize(
    "name",
    [
        *("batch norm", "gradient penalty"),
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("tied", "custom function", "no_grad inside")),
    ],
)
def test_a_compiled_program_and_its_gradients_are_eagers(name: str) -> None:
    torch.manual_seed(1)
    make, owners = PROGRAMS[name]
    pair = Pair(make, *owners(), lower="inductor")
    for _ in range(3):
        pair.act(train, torch.randn(4, 3, requires_grad=True))
    for a, b in zip(tree_leaves(list(state(pair.owners))), tree_leaves(list(state(pair.eager_owners))), strict=True):
        torch.testing.assert_close(a, b)
    assert pair.jitted.statistics().replays == 2


@pytest.mark.compile
def test_operators_serve_until_inductor_has_compiled_both_directions() -> None:
    torch.manual_seed(1)
    make, owners = PROGRAMS["batch norm"]
    pair = Pair(make, *owners(), lower="auto")
    with treeplay.settings.changed(tiers="background"):
        for _ in range(6):
            pair.act(train, torch.randn(4, 3, requires_grad=True))
            if pair.jitted.statistics().replays > 2:
                assert compile_thread.wait(120)
    (key,) = pair.jitted.statistics().keys
    (recording,) = key.recordings
    assert recording.lowering == "inductor" and "took the place" in recording.tier
    assert pair.jitted.statistics().replays == 5


class Scaled(nn.Module):
    """Scores and a loss of their transpose: the scale's gradient is a sum in the order in which that of the scores lies."""

    def __init__(self) -> None:
        super().__init__()
        self.weigh = nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.tensor(1.3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.weigh(x) * self.scale.exp()
        return nn.functional.cross_entropy(scores.t(), torch.arange(4)), scores


def test_a_gradient_is_summed_in_eagers_order_where_another_result_has_none() -> None:
    torch.manual_seed(1)
    eager = Scaled()
    model = copy.deepcopy(eager)
    program = jit(model)
    for _ in range(20):
        x = torch.randn(4, 8)
        for each, call in ((eager, eager), (model, program)):
            each.zero_grad()
            call(x)[0].backward()
        assert torch.equal(model.scale.grad, eager.scale.grad)
    assert program.statistics().replays == 19


@pytest.mark.parametrize(
    "options", [{"num_layers": 3}, {"num_layers": 2, "bidirectional": True}], ids=["three layers", "both directions"]
)
def test_weights_of_stacked_recurrent_layers_get_eagers_gradients(options: dict[str, Any]) -> None:
    pair = Pair(lambda net: lambda x: net(x)[0], nn.RNN(3, 4, bias=False, **options))
    for _ in range(3):
        pair.act(train, torch.randn(5, 2, 3, requires_grad=True))
    assert pair.jitted.statistics().replays == 2


# --- when and how backward is called -------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [three, apart], ids=["one trunk", "apart"])
@pytest.mark.parametrize(
    "action", [*BACKWARDS, in_turn_and_again, change_what_only_one_needs], ids=lambda f: f.__name__
)
def test_backward_later_in_parts_and_in_any_order_is_eagers(action: Callable[..., Any], make: Any) -> None:
    if make is three and action is change_what_only_one_needs:
        return  # both of torch's errors are due, and either may be the first
    torch.manual_seed(2)
    pair = Pair(make, parameter(3), parameter(3))
    for _ in range(4):  # the same twice: a retained graph is there on a warm call too
        pair.act(action, torch.randn(3))
    assert pair.jitted.statistics().replays >= 3


def test_torchs_own_errors_are_raised() -> None:
    w, v = parameter(3), parameter(3)
    program = jit(three(w, v))
    for _ in range(3):
        program(torch.randn(3))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        same_twice_without_retaining(program, torch.randn(3), (w, v))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        after_a_change_that_matters(program, torch.randn(3), (w, v))
    first_only(program, torch.randn(3), (w, v))  # and the recording is as good as before


def test_a_result_that_is_not_asked_for_spoils_no_gradient() -> None:
    w = parameter(3)
    program = jit(lambda x: (x * w, torch.sqrt(w * 0)))
    for _ in range(3):
        w.grad = None
        program(torch.full((3,), 2.0))[0].sum().backward()
        assert_same(w.grad, torch.full((3,), 2.0))  # 0 · inf would be NaN


def penalty(program: Callable[..., Any], x: torch.Tensor, owners: Any) -> torch.Tensor:
    """Train on a gradient penalty."""
    y = program(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    loss = y.mean() + (slope.norm(dim=1) - 1).pow(2).mean()
    loss.backward()
    return loss.detach()


def residual(program: Callable[..., Any], x: torch.Tensor, owners: Any) -> torch.Tensor:
    """Train on a differential equation of second order."""
    y = program(x)
    (slope,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    (bend,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
    loss = (bend[:, 0] + y[:, 0] ** 2).pow(2).mean()
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("action", [penalty, residual], ids=lambda f: f.__name__)
def test_gradients_of_gradients_are_eagers(action: Callable[..., Any]) -> None:
    torch.manual_seed(3)
    pair = Pair(lambda m: m, nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)))
    pair.is_exact = False  # sums of parts come in another order
    for _ in range(3):
        pair.act(action, torch.randn(4, 3, requires_grad=True))
    assert pair.jitted.statistics().replays == 2


def test_gradients_of_gradients_of_computed_weights_are_eagers() -> None:
    """Of which the last bias has no part in the second derivative."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

    def program(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (x,))  # type: ignore[no-any-return]

    jitted = jit(program)
    for _ in range(3):
        x, found = torch.randn(4, 3, requires_grad=True), []
        for call in (jitted, program):
            model.zero_grad()
            weights = {name: weight * 2 for name, weight in model.named_parameters()}
            residual(lambda x, call=call, weights=weights: call(weights, x), x, None)
            found.append([weight.grad for weight in model.parameters()])
        torch.testing.assert_close(*found)
    assert jitted.statistics().replays == 2


def test_a_program_that_changed_before_its_backward_is_not_differentiated_again() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    program = jit(model)
    for _ in range(3):
        program(torch.randn(4, 3))
    y = program(torch.randn(4, 3)).exp().sum()
    model.eval()
    (slope,) = torch.autograd.grad(y, model[0].weight, create_graph=True)
    with pytest.raises(RuntimeError, match=r"differentiated twice: .*would not do the same"):
        slope.sum().backward()


def critic() -> nn.Sequential:
    norm = nn.utils.spectral_norm
    return nn.Sequential(norm(nn.Linear(3, 5)), nn.Tanh(), nn.Dropout(0.4), norm(nn.Linear(5, 2)), nn.Dropout(0.3))


def test_a_gradient_penalty_through_dropout_and_spectral_norms_is_eagers(device: str) -> None:
    """The norms overwrite the vectors that they are computed from; the dropouts draw on the device."""
    eager = critic().to(device)
    model = copy.deepcopy(eager)
    program = jit(model, lower="aten", on_refusal="raise")
    for call in range(5):
        found = []
        for run, owner in ((eager, eager), (program, model)):
            torch.manual_seed(call)
            owner.zero_grad()
            loss = penalty(run, torch.randn(4, 3, device=device, requires_grad=True), owner)
            drawn = torch.rand(2, device=device)  # goes on from where the call and its backwards left it
            found.append([loss, drawn, *owner.buffers(), *(parameter.grad for parameter in owner.parameters())])
        for ours, eagers in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(ours, eagers)
    assert program.statistics().replays == (4 if device == "cpu" else 3)


# --- training loops -----------------------------------------------------------------------------------------------


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 1))


@pytest.mark.parametrize("algorithm", [torch.optim.SGD, torch.optim.AdamW])
def test_a_loop_with_its_own_backward_and_optimizer(algorithm: Any) -> None:
    torch.manual_seed(3)
    sides = []
    first = net()
    for make in (lambda model: model, lambda model: jit(model)):
        model = copy.deepcopy(first)
        optimizer = algorithm(model.parameters(), lr=0.1)
        program = make(model)
        torch.manual_seed(4)
        losses = []
        for step in range(6):
            if step == 4:
                optimizer.param_groups[0]["lr"] = 0.01
            for _ in range(2):  # gradients add up
                loss = (program(torch.randn(4, 3)) - 1).pow(2).mean()
                loss.backward()
                losses.append(loss.detach())
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        sides.append((losses, model, optimizer, program))
    (expected, *eager, _), (found, *jitted, program) = sides
    assert_same(found, expected)
    assert_same_state(tuple(jitted), tuple(eager))
    assert program.statistics().replays == 11


def test_modes_have_recordings_of_their_own() -> None:
    torch.manual_seed(5)
    model = net()
    twin, program = copy.deepcopy(model), jit(model)

    def calls() -> None:
        for mode in (True, False):
            for side in (model, twin):
                side.train(mode)
            x = torch.randn(4, 3)
            state = torch.get_rng_state()
            for side in (twin, program):
                torch.set_rng_state(state)
                side(x).pow(2).sum().backward()
            with torch.no_grad():
                torch.set_rng_state(state)
                found = program(x)
                torch.set_rng_state(state)
                assert_same(found, twin(x))
                assert not found.requires_grad

    for _ in range(4):
        calls()
    assert_same_state((model,), (twin,))
    kinds = [recording.kind for key in program.statistics().keys for recording in key.recordings]
    assert sorted(kinds) == ["differentiable", "differentiable", "inference", "inference"]
    assert program.statistics().replays == 12


def test_hooks_on_parameters_run_in_each_backward() -> None:
    w = parameter(3)
    program = jit(lambda x: (x * w).sum() + (w * 2).sum())
    seen: list[torch.Tensor] = []
    w.register_hook(lambda grad: seen.append(grad) or grad * 10)
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    for call in range(4):
        w.grad = None
        program(torch.full((3,), float(call))).backward()
        assert_same(w.grad, torch.full((3,), 10.0 * (call + 2)))
    assert len(seen) == 8 and program.statistics().replays == 3


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("what", ["two results", "a branch that is not used"])
def test_hooks_after_the_accumulation_are_not_called_in_vain(what: str, is_late: bool) -> None:
    """Torch calls them for each parameter of the node, with whatever gradient is there: an optimizer would step again."""
    w, v = parameter(3), parameter(3)

    def program(x: torch.Tensor) -> Any:
        dead = x - v
        return (x * w, dead * 2) if what == "two results" else x * w

    def step(parameter: torch.Tensor) -> None:
        stepped.append(parameter is w)

    jitted, stepped = treeplay.jit(program, lower="aten"), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for call in range(8):
            if call == (4 if is_late else 0):
                w.register_post_accumulate_grad_hook(step)
                v.register_post_accumulate_grad_hook(step)
            out = jitted(torch.full((3,), float(call)))
            (out[0] if isinstance(out, tuple) else out).sum().backward()
    assert stepped == [True] * (4 if is_late else 8)
    assert jitted.statistics().replays == (3 if is_late else 0)


def test_a_frozen_parameter_gets_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    program = jit(model)
    for _ in range(4):
        program(torch.ones(2, 3)).sum().backward()
    assert model[0].weight.grad is None and program.statistics().replays == 3
    model[0].requires_grad_(True)
    model[1].weight.grad = None
    for _ in range(3):
        program(torch.ones(2, 3)).sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.parametrize("reads", [False, True], ids=["unread", "read"])
def test_a_schedule_beside_the_program_is_no_reason_to_record_anew(reads: bool) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model = nn.Linear(4, 2)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
            self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.75)

        def loss(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).pow(2).mean() * (self.optimizer.param_groups[0]["lr"] if reads else 1.0)

        def step(self, loss: torch.Tensor) -> None:
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()

    ours = Trainer()
    eager = copy.deepcopy(ours)
    program = jit(ours.loss)
    for _ in range(5):
        x = torch.randn(3, 4)
        found, expected = program(x), eager.loss(x)
        assert torch.equal(found, expected)
        ours.step(found)
        eager.step(expected)
    assert torch.equal(ours.model.weight, eager.model.weight)
    assert (program.statistics().recordings == 1) is not reads


def test_a_hyper_parameter_that_is_read_is_a_condition() -> None:
    w = parameter(3)
    optimizer = torch.optim.SGD([w], lr=0.5)
    program = jit(lambda x: x * w * optimizer.param_groups[0]["lr"])
    for lr in (0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.5):
        optimizer.param_groups[0]["lr"] = lr
        found = program(torch.ones(3))
        assert_same(found.detach(), (w * lr).detach())
        found.sum().backward()
    assert program.statistics().recordings == 2 and program.statistics().replays == 5


def test_state_that_is_reassigned_is_read_anew() -> None:
    model = nn.Linear(3, 1)
    program = jit(model)
    for call in range(6):
        if call >= 3:
            model.weight = parameter(1, 3)
        model.zero_grad()
        program(torch.ones(2, 3)).sum().backward()
        assert_same(model.weight.grad, torch.full((1, 3), 2.0))
        assert_same(program(torch.ones(1, 3)).detach(), model(torch.ones(1, 3)).detach()) if call > 3 else None


# --- results ------------------------------------------------------------------------------------------------------


def test_results_are_what_they_are_in_eager() -> None:
    w = parameter(3)

    def program(x: torch.Tensor) -> Any:
        y = x * w
        return {
            "y": y,
            "again": y,
            "row": y[0],
            "flat": y.view(-1),
            "part": w[1:],
            "x": x,
            "w": w,
            "n": 3,
            "none": None,
        }

    jitted = jit(program)
    for _ in range(3):
        x = torch.randn(2, 3)
        found, expected = jitted(x), program(x)
        assert_same(found, expected)
        assert list(found) == list(expected)
        assert found["again"] is found["y"] and found["x"] is x and found["w"] is w
        assert found["part"]._base is w and found["part"].requires_grad
        found["y"].data.fill_(7)
        assert found["row"].tolist() == [7, 7, 7] and found["flat"].tolist() == [7] * 6
    assert jitted.statistics().replays == 2


def test_a_leaf_and_the_result_of_something_have_recordings_of_their_own() -> None:
    w = parameter(3)
    program = jit(lambda x: (x * w, x.detach() * 2))
    leaf = torch.ones(3, requires_grad=True)
    for _ in range(4):
        for x in (leaf, leaf * 2):
            leaf.grad = None
            program(x)[0].sum().backward()
            assert_same(leaf.grad, (w if x is leaf else w * 2).detach())
    assert program.statistics().recordings == 2 and program.statistics().replays == 6


def test_written_arguments_that_meet_are_recorded_apart() -> None:
    w = parameter(3)

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.mul_(2)
        return y * w

    jitted = jit(program, on_refusal="eager")
    for together in (False, False, False, True, True, True, False):
        base = torch.arange(4.0)
        x, y = (base[:3], base[1:]) if together else (torch.arange(3.0), torch.arange(1.0, 4.0))
        twin = base.clone()
        other = (twin[:3], twin[1:]) if together else (x.clone(), y.clone())
        assert_same(jitted(x, y).detach(), program(*other).detach())
        assert_same([x, y], list(other))
    assert jitted.statistics().replays >= 3


def test_what_a_call_saved_goes_with_its_results() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    program = jit(model)
    given = []
    for _ in range(3):
        x = torch.randn(2, 3)
        given.append(weakref.ref(x))
        program(x).sum().backward()
    x = torch.randn(2, 3, requires_grad=True)
    gc.collect()
    assert [known() for known in given] == [None] * 3  # the call that was recorded is one of them
    gone = weakref.ref(x)
    loss = program(x).sum()
    del x
    assert gone() is not None  # its backward needs it
    del loss
    gc.collect()
    assert gone() is None


def test_under_hooks_on_saved_tensors_it_is_the_plain_program() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    twin, program = copy.deepcopy(model), jit(model)
    for _ in range(4):
        x = torch.randn(2, 3)
        for side in (twin, program):
            with torch.autograd.graph.save_on_cpu():
                side(x).sum().backward()
            torch.utils.checkpoint.checkpoint(side, x, use_reentrant=False).exp().sum().backward()
            side(x).sum().backward()
    assert_same_state((model,), (twin,))
    assert program.statistics().replays == 3


@pytest.mark.parametrize("kind", ["functions", "graphs"])
def test_hooks_of_the_program_that_change_what_is_saved_are_refused(kind: str) -> None:
    """Their backward was given what they had not seen."""
    pack, unpack = (torch.fx.symbolic_trace(f) if kind == "graphs" else f for f in (lambda t: t * 2, lambda t: t * 1.5))

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = x.sin()
        return y * x

    jitted = treeplay.jit(program, lower="aten")
    with pytest.warns(UserWarning, match="saved_tensors_hooks: puts hooks on what is saved"):
        for _ in range(4):
            mine, eagers = (torch.arange(3.0).requires_grad_() for _ in range(2))
            jitted(mine).sum().backward()
            program(eagers).sum().backward()
            assert torch.equal(mine.grad, eagers.grad)


def test_hooks_of_a_whole_step_are_followed() -> None:
    weight = nn.Parameter(torch.ones(3))

    def program(x: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t * 1.5):
            loss = (x * weight).sin().sum()
        loss.backward()
        return weight.grad.clone()

    jitted = jit(program)
    for k in range(4):
        torch.testing.assert_close(jitted(torch.arange(3.0) + k), program(torch.arange(3.0) + k))
    assert jitted.statistics().replays == 3


def test_an_exception_of_the_program_leaves_no_mark() -> None:
    model, fails = nn.Linear(3, 1), [False]
    versions = [p._version for p in model.parameters()]
    apply = torch.autograd.Function.__dict__["apply"]

    def program(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        if fails[0]:
            raise KeyError("mine")
        return y

    jitted = jit(program)
    jitted(torch.ones(1, 3))
    fails[0] = True
    with pytest.raises(KeyError, match="mine"):
        jitted(torch.ones(1, 3))
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    assert [p._version for p in model.parameters()] == versions
    assert torch.autograd.Function.__dict__["apply"] is apply and torch._C._len_torch_function_stack() == 0


# --- refusals and reports -----------------------------------------------------------------------------------------


def hooked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * w
    y.register_hook(lambda grad: grad * 2)
    return y.exp()


def half_done(x: torch.Tensor, w: torch.Tensor) -> Any:
    (x * w).sum().backward()
    return (x * w).exp()


def new_leaf(x: torch.Tensor, w: torch.Tensor) -> Any:
    leaf = torch.zeros(3, requires_grad=True)
    return x * w - leaf, leaf


def reads(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x * w * (x * w).sum().item()


REFUSED = {"hook": hooked, "half done": half_done, "new leaf": new_leaf, "reads": reads}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_with_the_line_and_runs_as_it_is(name: str) -> None:
    program, w, twin = REFUSED[name], parameter(3), parameter(3)
    with torch.no_grad():
        twin.copy_(w)
    strict = jit(lambda x: program(x, w))
    strict(torch.ones(3))
    with pytest.raises(treeplay.Refusal) as caught:
        strict(torch.ones(3))
    assert caught.value.where is not None and caught.value.where.function in (program.__name__, "<lambda>")
    w.grad = None
    easy = jit(lambda x: program(x, w), on_refusal="eager")
    for _ in range(3):
        for side in (easy, lambda x: program(x, twin)):
            result = side(torch.ones(3))
            (result[0] if isinstance(result, tuple) else result).sum().backward()
        assert_same(w.grad, twin.grad)
    assert easy.statistics().refusals == 1


def test_backward_hooks_of_modules_are_refused() -> None:
    model = nn.Linear(3, 1)
    model.register_full_backward_hook(lambda module, given, gave: (given[0] * 2,))
    program = jit(model, on_refusal="eager")
    for _ in range(3):
        x = torch.ones(1, 3, requires_grad=True)
        program(x).sum().backward()
        assert_same(x.grad, (model.weight * 2).detach())
    assert "backward hook" in program.explain()


def test_what_happened_is_told() -> None:
    program = jit(nn.Linear(3, 1))
    for _ in range(3):
        loss = program(torch.ones(2, 3)).sum()
    assert "differentiable, aten" in program.explain()
    assert "backward: not asked for yet; gradients for 2 of 3 tensors" in program.explain()
    loss.backward()
    (recording,) = program.statistics().keys[0].recordings
    assert recording.backward.startswith("compiled; gradients for 2 of 3 tensors")
    (source,) = program.sources()
    for function in ("def replay(args, kwargs)", "def call(args)", "def forward(ctx", "def backward(ctx"):
        assert function in source


def test_a_custom_function_that_gives_an_argument_a_history_is_refused_and_leaves_no_mark() -> None:
    class Tripled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.mark_dirty(x)
            return x.mul_(w)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient * 5, gradient * 7

    w = parameter(3)
    program = jit(lambda x: (Tripled.apply(x, w), w * 2)[1], on_refusal="eager")
    for _ in range(3):
        leaf = torch.ones(3, requires_grad=True)
        x = leaf * 2
        program(x)
        x.sum().backward()
        assert_same(leaf.grad, torch.full((3,), 10.0))
    assert "mark_dirty: makes a tensor that outlives the call part of a gradient graph" in str(program.explain())


def test_a_custom_function_may_change_an_argument_where_gradients_are_off() -> None:
    class Tripled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.mark_dirty(x)
            return x.mul_(w)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient, gradient

    program = jit(lambda x, w: Tripled.apply(x, w) + 1)
    for _ in range(3):
        x = torch.full((3,), 2.0)
        with torch.no_grad():
            assert_same(program(x, nn.Parameter(torch.full((3,), 3.0))), torch.full((3,), 7.0))
        assert_same(x, torch.full((3,), 6.0))
    assert program.statistics().replays == 2


def _in_a_loop(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(2, 4, 3)
    for at in range(4):
        out[:, at] = x[:, at] @ w - at
    return out


def _rotated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out, y = torch.empty_like(x), x @ w
    out[..., :1], out[..., 1:] = y[..., 2:] * 2 - y[..., :1], y[..., :2] + y[..., 1:] * 3
    return out


def _padded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(x @ w, (1, 2), mode="circular") * 2


@pytest.mark.parametrize("program", [_in_a_loop, _rotated, _padded])
def test_parts_of_a_new_tensor_may_be_written_from_one_line(program: Any) -> None:
    w = torch.randn(3, 3, requires_grad=True)
    jitted = jit(program)
    for _ in range(4):
        x = torch.randn(2, 4, 3)
        found, expected = jitted(x, w), program(x, w)
        assert_same(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad((y * y).sum(), w) for y in (found, expected)))
    assert jitted.statistics().replays == 3


def test_a_step_may_write_parts_of_a_new_tensor_from_one_line() -> None:
    w = nn.Parameter(torch.eye(3))

    def step(x: torch.Tensor) -> torch.Tensor:
        w.grad = None
        loss = (_in_a_loop(x, w) ** 2).sum()
        loss.backward()
        return loss.detach()

    jitted = jit(step)
    for _ in range(4):
        x = torch.randn(2, 4, 3)
        found, gradient = jitted(x), w.grad
        assert_same(found, step(x))
        assert_same(gradient, w.grad)
    assert jitted.statistics().replays == 3


HISTORIES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "added": lambda x, w: x.add_(w),
    "multiplied": lambda x, w: (x.mul_(w), (x**2).sum())[1],
    "copied": lambda x, w: (x.copy_(w * 2), None)[1],
    "a part": lambda x, w: (x[1:].mul_(w[1:]), x.sum())[1],
    "a view": lambda x, w: (x.view(3, 1).add_(w[:, None]), x * 2)[1],
    "an element": lambda x, w: (x.__setitem__(0, w[1]), x)[1],
    "by an operator over lists": lambda x, w: (torch._foreach_add_([x], [w]), x * 3)[1],  # type: ignore[func-returns-value]
    "not returned": lambda x, w: (x.add_(w), x.detach().sum() * 2)[1],
}


@pytest.mark.parametrize("what", HISTORIES)
def test_an_argument_may_become_part_of_a_graph(what: str) -> None:
    program = HISTORIES[what]
    jitted = jit(program)
    for _ in range(4):
        w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        given = torch.randn(3)
        sides = []
        for run in (jitted, program):
            x = given.clone()
            result = run(x, w)
            (gradient,) = torch.autograd.grad((x * x).sum(), w)
            sides.append((result if result is not x else None, x, gradient))
            assert x.requires_grad and not x.is_leaf
        assert_same(*sides)
    statistics = jitted.statistics()
    assert (statistics.replays, statistics.refusals) == (3, 0)


def test_a_trace_leaves_an_argument_without_the_history_it_gave() -> None:
    w = torch.ones(3, requires_grad=True)
    jitted = jit(lambda x: (x.add_(w), x.nonzero())[1], on_refusal="eager")
    jitted(torch.ones(3))
    x = torch.ones(3)
    with pytest.warns(UserWarning, match="nonzero"):
        jitted(x)
    assert x.grad_fn is not None and torch.equal(x.detach(), torch.full((3,), 2.0))


@pytest.mark.parametrize("what", ["state", "a backward inside"])
def test_what_would_keep_a_graph_is_refused_as_such(what: str) -> None:
    w, kept = torch.ones(3, requires_grad=True), torch.zeros(3)

    def program(x: torch.Tensor) -> torch.Tensor:
        target = kept if what == "state" else x
        target.add_(w * 2)  # HERE
        if what != "state":
            (target**2).sum().backward()
        return x.detach() * 2

    jitted = jit(program)
    jitted(torch.ones(3))
    kept = kept.detach()
    with pytest.raises(treeplay.Refusal, match="part of a gradient graph") as caught:
        jitted(torch.ones(3))
    assert caught.value.where is not None and "HERE" in caught.value.where.source


def test_a_parameter_written_by_an_operator_over_lists_is_known_to_have_changed() -> None:
    weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]

    def program(x: torch.Tensor) -> torch.Tensor:
        loss = sum((w * w * x).sum() for w in weights)
        with torch.no_grad():
            torch._foreach_mul_(weights, 2.0)
        loss.backward()  # type: ignore[union-attr]
        return x

    jitted = jit(program)
    for call in range(4):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            jitted(torch.ones(3))
        assert [w._version for w in weights] == [call + 1] * 2
        assert weights[0][0] == 2.0 ** (call + 1)


def test_a_result_that_needs_gradients_of_parameters_made_inside_is_refused() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return nn.Linear(3, 2)(x)

    jitted = jit(run, on_refusal="eager")
    for _ in range(3):
        assert jitted(torch.randn(4, 3)).grad_fn is not None
    assert "makes itself" in jitted.statistics().keys[0].refusal


@pytest.mark.parametrize("kept", ["returned", "stored"])
def test_a_graph_that_a_backward_did_not_use_up_is_no_used_up_one(kept: str) -> None:
    """Sums save nothing, so a backward frees nothing of them, and the caller may go back through them again."""
    base, delta, seen = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True), {}

    def program(x: torch.Tensor) -> Any:
        weight = base + delta
        (weight * x).sum().backward()
        seen["weight"] = weight if kept == "stored" else weight.detach()
        return weight if kept == "returned" else x

    jitted = jit(program, on_refusal="eager")
    for _ in range(4):
        base.grad = delta.grad = None
        result = jitted(torch.full((3,), 2.0))
        (result if kept == "returned" else seen["weight"]).sum().backward()
        assert base.grad.tolist() == delta.grad.tolist() == [3.0] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("saves", ["a factor", "a write to a view"])
def test_a_result_of_a_graph_that_a_backward_used_up_comes_back_detached(saves: str) -> None:
    weight = torch.ones(3, requires_grad=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        if saves == "a factor":
            loss = (weight * x).sum() - 1.0
        else:
            padded = torch.zeros(3)
            padded[:2] = weight[:2]
            loss = padded.sum()
        loss.backward()
        return loss

    jitted = jit(program)
    assert [jitted(torch.ones(3)).requires_grad for _ in range(4)] == [True, False, False, False]


def test_data_that_is_set_in_a_forward_is_refused_with_what_is_recorded() -> None:
    scale, w = torch.ones(3), torch.ones(3, requires_grad=True)

    def assigns(x: torch.Tensor) -> torch.Tensor:
        scale.data *= 0.5
        return x * w * scale

    def writes(x: torch.Tensor) -> torch.Tensor:
        scale.data.mul_(0.5)
        return x * w * scale

    refused, recorded = jit(assigns), jit(writes)
    refused(torch.ones(3))
    with pytest.raises(treeplay.Refusal, match="mul_") as caught:
        refused(torch.ones(3))
    assert caught.value.op == "data"
    scale.fill_(1.0)
    for at in range(4):
        (gradient,) = torch.autograd.grad(recorded(torch.ones(3)).sum(), w)
        assert gradient.tolist() == [0.5 ** (at + 1)] * 3
    assert recorded.statistics().replays == 3


class KeepsItsResult(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, by: float) -> torch.Tensor:
        return (x * by).exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.by = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.saved_tensors[0] * ctx.by, None


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_custom_function_may_save_its_result(is_whole: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        y = KeepsItsResult.apply(x * 2, 3.0)
        return torch.autograd.grad(y.sum(), x)[0] if is_whole else y

    jitted = jit(program)
    for at in range(4):
        mine, theirs = (torch.arange(3.0).add(at).div(9).requires_grad_() for _ in range(2))
        found, expected = jitted(mine), program(theirs)
        if not is_whole:
            found.sum().backward(), expected.sum().backward()
        assert_same((found, mine.grad), (expected, theirs.grad))
    assert jitted.statistics().replays == 3


def test_a_custom_backward_draws_what_it_does_not_use_too() -> None:
    class Draws(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            torch.rand(3)
            return gradient - torch.rand(6)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return Draws.apply(x), x * torch.rand(6)  # type: ignore[no-untyped-call]

    jitted = treeplay.jit(program, lower="aten")
    for k in range(4):
        for which in (0, 1):
            found = []
            for call in (jitted, program):
                torch.manual_seed(k)
                x = torch.arange(6.0, requires_grad=True)
                call(x)[which].sum().backward()
                found.append((x.grad, torch.rand(2)))
            assert_same(*found)
    assert jitted.statistics().replays == 7


@pytest.mark.parametrize("lower", ["aten", pytest.param("inductor", marks=pytest.mark.compile)])
def test_random_integers_between_two_bounds(lower: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * torch.empty(3).random_(2, 9) - torch.empty(3).random_(5)

    jitted = treeplay.jit(program, lower=lower)
    for k in range(3):
        mine, theirs = (torch.arange(3.0).requires_grad_() for _ in range(2))
        torch.manual_seed(k)
        found = jitted(mine)
        found.sum().backward()
        torch.manual_seed(k)
        expected = program(theirs)
        expected.sum().backward()
        if lower == "aten":
            assert_same((found, mine.grad), (expected, theirs.grad))
        assert mine.grad.min() >= 2 and mine.grad.max() < 9  # type: ignore[union-attr]
    assert jitted.statistics().replays == 2


class DrawsForBoth(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return g * torch.rand(6) - 1, h - torch.rand(6)


class DrawsTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        return torch.rand(6)


def draws_in_three_nodes(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
    a, b = DrawsForBoth.apply(x * 2, y - 1)  # type: ignore[no-untyped-call]
    drawn = DrawsTheGradient.apply(z * 5)  # type: ignore[no-untyped-call]
    return a, b * z, drawn - x * z, DrawsTheGradient.apply(b / 7)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("by", ["grad", "backward"])
@pytest.mark.parametrize("results", [(0,), (1,), (2,), (3,), (0, 2), (1, 3), (0, 1, 2, 3)])
def test_a_custom_backward_draws_only_where_autograd_runs_it(results: tuple[int, ...], by: str) -> None:
    jitted = treeplay.jit(draws_in_three_nodes, lower="aten")
    for k, wanted in enumerate([(0, 1, 2), (0,), (1,), (2,), (1, 2), (0, 1, 2), (2,)]):
        found = []
        for call in (jitted, draws_in_three_nodes):
            torch.manual_seed(k)
            given = [torch.arange(6.0) - at for at in range(3)]
            leaves = [value.requires_grad_() for value in given]
            outputs = call(*(leaf if k % 2 else leaf.view(6) for leaf in leaves))
            total = torch.stack([outputs[at] for at in results]).prod(0).sum()
            ends = [leaves[at] for at in wanted]
            if by == "grad":
                gradients = torch.autograd.grad(total, ends, allow_unused=True)
            else:
                total.backward(inputs=ends)
                gradients = tuple(leaf.grad for leaf in leaves)
            found.append((gradients, torch.rand(2)))
        assert_same(*found)
    assert jitted.statistics().replays >= 5


_GIVEN_BACK: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda y: y,
    "a view": lambda y: y[1:],
    "detached": lambda y: y.detach() * 2 - 1,
}


@pytest.mark.parametrize("back", _GIVEN_BACK)
@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("front", ["jit", "compile"])
def test_no_backward_runs_for_what_is_given_back_without_a_gradient_of_its_own(
    back: str, is_leaf: bool, front: str
) -> None:
    """Neither draws it, nor frees what the next backward needs."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return DrawsTheGradient.apply(x * 2) * x, _GIVEN_BACK[back](y)  # type: ignore[no-untyped-call]

    calls = {
        "jit": lambda: treeplay.jit(program, lower="aten", on_refusal="raise"),
        "compile": lambda: torch.compile(program, backend="treeplay", options={"inner": "aten"}),
    }
    mine = calls[front]()
    for k in range(3):
        found = []
        for call in (mine, program):
            torch.manual_seed(k)
            x, y = (torch.arange(6.0, requires_grad=True) for _ in range(2))
            result, _ = call(x, y if is_leaf else y * 3)
            nothing = torch.autograd.grad(result.sum(), [y], allow_unused=True)
            drawn = torch.rand(2)
            result.sum().backward()
            found.append((nothing, drawn, x.grad, y.grad, torch.rand(2)))
        assert_same(*found)


@pytest.mark.parametrize("preserves", [True, False])
def test_a_checkpoint_that_draws_is_eagers_whoever_runs_the_backward(preserves: bool) -> None:
    """With `preserve_rng_state=False` the backward draws once more, which no recording did."""
    weight, twin = (nn.Parameter(torch.ones(6)) for _ in range(2))

    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(
            lambda y: nn.functional.dropout(y * weight).sin(), x, use_reentrant=False, preserve_rng_state=preserves
        )

    jitted = treeplay.jit(program, lower="aten")
    told = contextlib.nullcontext() if preserves else pytest.warns(UserWarning, match="draws in a checkpoint")
    with told:
        for k in range(4):
            states = []
            for call, given in ((jitted, weight), (program, twin)):
                torch.manual_seed(k)
                call(torch.arange(6.0), given).sum().backward()
                states.append(torch.get_rng_state())
            assert torch.equal(weight.grad, twin.grad)
            assert torch.equal(*states)
    assert jitted.statistics().replays == (3 if preserves else 0)


@pytest.mark.parametrize("is_set", [True, False])
def test_a_tensor_of_the_program_is_made_to_need_a_gradient(is_set: bool) -> None:
    """As libraries do for a checkpoint: by setting the attribute, or by the method."""
    layer = nn.Linear(4, 4)
    twin = copy.deepcopy(layer)

    def program(x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
        inside = x[:, None] * 2
        if is_set:
            inside.requires_grad = True
        else:
            inside.requires_grad_()
        y = layer(inside).square().sum()
        (slope,) = torch.autograd.grad(y, inside, create_graph=True)
        return y - slope.sum()

    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    for _ in range(4):
        x, results = torch.randn(3, 4), []
        for call, given in ((jitted, layer), (program, twin)):
            results.append(call(x, given))
            results[-1].backward()
        assert_same(*results)
        assert torch.equal(layer.weight.grad, twin.weight.grad)
    assert jitted.statistics().replays == 3


@pytest.mark.parametrize("is_set", [True, False])
def test_a_result_that_was_made_to_need_a_gradient_is_refused(is_set: bool) -> None:
    layer = nn.Linear(4, 4)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inside = x * 2
        if is_set:
            inside.requires_grad = True
        else:
            inside.requires_grad_()
        return layer(inside), inside

    jitted = treeplay.jit(program, lower="aten")
    with pytest.warns(UserWarning, match="a new leaf that needs a gradient"):
        for _ in range(3):
            y, inside = jitted(torch.ones(3, 4))
            y.sum().backward()
            assert inside.is_leaf and torch.equal(inside.grad, layer.weight.detach().sum(0).expand(3, 4))


def test_a_checkpoint_that_writes_state_is_refused_where_the_caller_runs_its_backward() -> None:
    """Which runs the batch norm once more: its statistics were brought up to date once."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    twin = copy.deepcopy(model)

    def program(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)

    jitted = treeplay.jit(program, lower="aten")
    with pytest.warns(UserWarning, match="in a checkpoint, which does so once more in the backward"):
        for _ in range(4):
            x = torch.randn(4, 3)
            jitted(model, x).square().sum().backward()
            program(twin, x).square().sum().backward()
    assert_same_state((model,), (twin,))


_WAYS_PAST_AUTOGRAD: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "data": lambda w, y: w.data.sub_(0.1 * y),
    "data of a view": lambda w, y: w[1:].data.mul_(y[1:]).sub_(0.5),
    "view of data": lambda w, y: w.data[1:].mul_(y[1:]).sub_(0.5),
    "data of data": lambda w, y: w.data.data.t().mul_(0.5).sub_(y),
    "under no_grad": lambda w, y: torch.no_grad()(lambda: w.sub_(0.1 * y))(),
}


@pytest.mark.parametrize("way", _WAYS_PAST_AUTOGRAD)
def test_a_write_past_autograd_outdates_what_eager_takes_for_outdated(way: str) -> None:
    def step(w: Any, y: torch.Tensor) -> torch.Tensor:
        before = w.detach()[1:]
        _WAYS_PAST_AUTOGRAD[way](w, y)
        return (w * w - before.sum() * y).sum()

    mine, eagers = (torch.ones(3, requires_grad=True) for _ in range(2))
    jitted = jit(lambda y: step(mine, y))
    for _ in range(4):
        y, ends = torch.randn(3), []
        for w, run in ((mine, jitted), (eagers, lambda y: step(eagers, y))):
            saved, version = (w * w).sum(), w._version
            result = run(y)
            result.backward()
            try:
                saved.backward()
            except RuntimeError as error:
                ends.append(str(error).partition(":")[0])
            else:
                ends.append("")
            assert (w._version != version) is (way == "under no_grad")
        assert ends[0] == ends[1] and torch.equal(mine, eagers) and torch.equal(mine.grad, eagers.grad)
    assert jitted.statistics().replays == 3


@pytest.mark.parametrize(
    "same",
    [
        lambda x: nn.functional.dropout(x, 0.3, False),
        lambda x: nn.functional.alpha_dropout(x, 0.3, False),
        lambda x: torch.dropout(x, 0.0, True),
        lambda x: x.contiguous(),
        lambda x: x * 1,
    ],
    ids=["dropout that is off", "alpha dropout that is off", "dropout of nothing", "contiguous", "a product"],
)
def test_the_program_finds_its_argument_again_where_eager_does(same: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * (2.0 if same(x) is x else 3.0) - 1.0

    jitted = jit(program)
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        assert torch.equal(jitted(x), program(x))
    assert jitted.statistics().replays == 2


class _Flipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.contiguous().as_strided((12,), (1,)).flip(0).view(3, 4)


def _turned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.view_as_real(torch.view_as_complex(x.view(3, 2, 2)) * torch.polar(torch.ones(3, 2), torch.ones(3, 2)))
    return y.sum(), y * 1


def _flipped(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = _Flipped.apply(x)
    return (h.t().contiguous() * torch.arange(12.0).view(4, 3)).sum(), h * 1


@pytest.mark.parametrize("results", [_turned, _flipped])
def test_a_gradient_that_is_taken_for_contiguous_keeps_its_strides_where_another_result_has_none(results: Any) -> None:
    torch.manual_seed(0)
    layer, found = nn.Linear(4, 4), []
    jitted = treeplay.jit(lambda x: results(layer(x)), lower="aten")
    for call in range(5):
        for program in (jitted, lambda x: results(layer(x))):
            layer.zero_grad()
            first, other = program(torch.arange(12.0).view(3, 4) - call)
            (first * 1.5 if call % 2 else first + other.sum()).backward()
            found.append([parameter.grad for parameter in layer.parameters()])
        assert_same(found[-2], found[-1])
    assert jitted.statistics().replays == 4
