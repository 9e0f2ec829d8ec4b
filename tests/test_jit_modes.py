"""Modes around a call: part of the key, or a reason to be the plain program."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import treeplay
from support import assert_same, guided_by, jit


def test_grad_mode_is_part_of_the_key() -> None:
    model = nn.Linear(2, 2)
    jitted = jit(lambda x: model(x) - x, on_refusal="eager")
    for call in range(8):
        x = torch.randn(1, 2)
        if call % 2:
            assert jitted(x).requires_grad
        else:
            with torch.no_grad():
                found = jitted(x)
            assert not found.requires_grad
            assert_same(found, (model(x) - x).detach())
    assert jitted.statistics().replays == 6


@pytest.mark.parametrize("make_inside", [False, True])
def test_inference_mode_replays(make_inside: bool) -> None:
    model = nn.Linear(2, 2)
    jitted = jit(model)
    outside = torch.randn(1, 2)
    with torch.inference_mode():
        for _ in range(5):
            x = torch.randn(1, 2) if make_inside else outside
            found = jitted(x)
            assert_same(found, model(x))
            assert found.is_inference()
    assert jitted.statistics().replays == 4


def test_a_program_may_enter_inference_mode_and_view_what_was_made_outside() -> None:
    position = torch.zeros(1)

    @torch.inference_mode()
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        position.add_(1)
        return x.view(-1, 1) - position[None] * 2, x[0], position

    jitted = jit(run)
    for _ in range(4):
        x, before = torch.randn(2), position.clone()
        found = jitted(x)
        after = position.clone()
        position.copy_(before)
        expected = run(x)
        assert_same([*found, after], [*expected, position])
        assert [t.is_inference() for t in found] == [t.is_inference() for t in expected] == [True, False, False]
    assert jitted.statistics().replays == 3


def test_results_of_both_kinds_of_mode_are_refused() -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode():
            y = x * 2
        return y, x - 1

    jitted = jit(run, on_refusal="eager")
    for _ in range(3):
        assert [t.is_inference() for t in jitted(torch.ones(2))] == [True, False]
    assert "inference mode" in jitted.statistics().keys[0].refusal


@pytest.mark.parametrize("what", ["product", "copy", "view"])
def test_a_result_with_gradients_that_leaves_the_inference_mode_around_the_call_is_refused(what: str) -> None:
    weight = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False):
            made = {"product": lambda: weight @ weight, "copy": lambda: x.clone() @ weight, "view": lambda: weight[1:]}
            return made[what]()

    jitted = jit(run, on_refusal="eager")
    for _ in range(3):
        gradients = []
        for call in (jitted, run):
            weight.grad = None
            with torch.inference_mode():
                found = call(torch.ones(2, 2))
            assert found.requires_grad and not found.is_inference()
            (found * found.detach()).sum().backward()
            gradients.append(weight.grad)
        assert_same(*gradients)
    assert "leaves the inference mode" in jitted.statistics().keys[0].refusal
    assert "weight @ weight" in jitted.statistics().keys[0].refusal


@pytest.mark.parametrize("lower", ["aten", "capture"])
def test_a_result_without_gradients_that_leaves_the_inference_mode_around_the_call(lower: str) -> None:
    weight = nn.Parameter(torch.tensor([1.0, 3.0]))

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False):
            return weight.detach() * 2 - x.clone()

    jitted = jit(run, lower=lower, on_refusal="eager")
    for k in range(4):
        with torch.inference_mode():
            x = torch.full((2,), float(k))
            found, expected = jitted(x), run(x)
        assert_same(found, expected)
        assert found.is_inference() is expected.is_inference() is False
    assert jitted.statistics().replays == (3 if lower == "aten" else 0)


def test_guidance_by_a_gradient_is_recorded_under_inference_mode() -> None:
    guided = guided_by(nn.Linear(2, 1))
    jitted = jit(guided)
    with torch.inference_mode():
        for _ in range(4):
            x = torch.randn(3, 2)
            assert_same(jitted(x), guided(x))
    assert jitted.statistics().replays == 3


def test_inference_mode_and_no_grad_do_not_share_a_recording() -> None:
    model = nn.Linear(2, 2)
    jitted, x = jit(model), torch.randn(1, 2)
    for _ in range(3):
        with torch.inference_mode():
            assert jitted(x).is_inference()
        with torch.no_grad():
            assert not jitted(x).is_inference()


@pytest.mark.parametrize("training", [False, True])
def test_autocast_around_the_call_is_followed(training: bool) -> None:
    def make(model: nn.Module) -> Any:
        def step(x: torch.Tensor) -> torch.Tensor:
            loss = (model(x).float() - model(x) * 2).pow(2).sum()
            if training:
                loss.backward()
            return loss.detach()

        return step

    model = nn.Linear(4, 4)
    twin = copy.deepcopy(model)
    jitted, eager = jit(make(model)), make(twin)
    with torch.set_grad_enabled(training):
        for call in range(10):
            x = torch.randn(2, 4)
            with torch.autocast("cpu", torch.bfloat16, enabled=call % 5 != 4):
                assert_same(jitted(x), eager(x))
                assert_same(model(x), twin(x))  # no cast of the trace is left in autocast's cache
            assert_same(model.weight.grad, twin.weight.grad)


def test_autocast_inside_the_program_is_recorded() -> None:
    model = nn.Linear(4, 4)

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x) - 1

    jitted = jit(step)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2, 4)
            found = jitted(x)
            assert found.dtype is torch.bfloat16
            assert_same(found, step(x))


def test_the_default_dtype_is_part_of_the_key() -> None:
    jitted = jit(lambda x: x - torch.ones(2))
    try:
        for dtype in (torch.float32, torch.float64) * 3:
            torch.set_default_dtype(dtype)
            assert jitted(torch.ones(2)).dtype is dtype
    finally:
        torch.set_default_dtype(torch.float32)
    assert jitted.statistics().recordings == 2


def test_a_default_device_of_cpu_changes_nothing() -> None:
    jitted = jit(lambda x: x - torch.ones(2))
    torch.set_default_device("cpu")
    try:
        for _ in range(4):
            jitted(torch.ones(2))
    finally:
        torch.set_default_device(None)
    assert jitted.statistics().replays == 3


def test_under_a_fake_mode_it_is_the_plain_program() -> None:
    jitted = jit(lambda x: x * 2)
    for _ in range(3):
        jitted(torch.ones(2))
    with FakeTensorMode():
        assert isinstance(jitted(torch.ones(2)), FakeTensor)
    statistics = jitted.statistics()
    assert (statistics.calls, statistics.replays) == (4, 2)
    assert statistics.not_replayed == {"observed": 1, "under the mode FakeTensorMode": 1}


def test_under_a_users_mode_each_operator_is_seen() -> None:
    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return func(*args, **(kwargs or {}))

    jitted = jit(lambda x: x * 2 - 1)
    for _ in range(3):
        jitted(torch.ones(2))
    x = torch.ones(2)
    with Count() as count:
        jitted(x)
    assert count.seen == 2


def test_under_vmap_and_grad_it_is_the_plain_program() -> None:
    jitted = jit(lambda x: (x * 3).sin().sum())
    for _ in range(3):
        jitted(torch.ones(2))
    x = torch.randn(4, 2)
    assert_same(torch.func.vmap(jitted)(x), (x * 3).sin().sum(1))
    assert torch.allclose(torch.func.grad(jitted)(x[0]), 3 * (x[0] * 3).cos())


def _loss(model: Any, params: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.func.functional_call(model, params, (x,)).pow(2).sum()


@pytest.mark.parametrize(
    "transformed",
    [
        lambda f, p, x: torch.func.grad(f)(p, x),
        lambda f, p, x: torch.func.vmap(torch.func.grad(f), (None, 0))(p, x),
        lambda f, p, x: torch.func.vjp(f, p, x)[1](torch.ones(())),
        lambda f, p, x: torch.func.jacrev(f, 1)(p, x),
        lambda f, p, x: torch.func.jacfwd(f, 1)(p, x),
        lambda f, p, x: torch.func.hessian(f, 1)(p, x[0]),
    ],
    ids=["grad", "per sample", "vjp", "jacrev", "jacfwd", "hessian"],
)
def test_function_transforms_inside_the_program_are_recorded(transformed: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    params = {name: value.detach().clone() for name, value in model.named_parameters()}

    def step(x: torch.Tensor) -> Any:
        return transformed(lambda p, v: _loss(model, p, v), params, x)

    jitted = jit(step)
    for _ in range(4):
        x = torch.randn(5, 3)
        assert_same(jitted(x), step(x))
        params["0.bias"].add_(0.1)
    assert jitted.statistics().replays == 3


def test_forward_mode_inside_the_program_is_recorded() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.func.jvp(lambda x: (x * 3).sin(), (x,), (x - 1,))  # type: ignore[no-any-return]

    jitted = jit(program)
    for factor in (2.0, -3.0, 0.5):
        assert_same(jitted(torch.ones(2) * factor), program(torch.ones(2) * factor))
    assert jitted.statistics().replays == 2


def test_vmap_and_grad_inside_the_program_are_recorded_or_refused() -> None:
    def per_sample(x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(torch.func.grad(lambda v: (v * 3).sin().sum()))(x) - x

    jitted = jit(per_sample, on_refusal="eager")
    for _ in range(4):
        x = torch.randn(4, 2)
        assert_same(jitted(x), per_sample(x))


def test_torch_compile_around_it_leaves_it_alone() -> None:
    jitted = jit(lambda x: x * 2 - 1)
    compiled = torch.compile(lambda x: jitted(x + 1) + 1, backend="eager")
    for _ in range(4):
        x = torch.randn(3)
        assert_same(compiled(x), (x + 1) * 2 - 1 + 1)
    assert jitted.statistics().replays == 3


def test_a_compiled_part_inside_the_program_is_inlined() -> None:
    part = torch.compile(lambda x: x * 2 - 1, backend="eager")
    jitted = jit(lambda x: part(x).relu())
    for _ in range(4):
        x = torch.randn(3)
        assert_same(jitted(x), (x * 2 - 1).relu())
    assert jitted.statistics().replays == 3


def test_a_context_manager_around_part_of_the_program_is_followed() -> None:
    weight = nn.Parameter(torch.randn(3))

    def step(x: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        with torch.no_grad():
            target = weight * x
        with torch.enable_grad():
            (weight * x - target * 2).pow(2).sum().backward()
        return target

    jitted = jit(step)
    for grad in (True, False) * 3:
        with torch.set_grad_enabled(grad):
            x = torch.randn(3)
            assert_same(jitted(x), (weight * x).detach())
        assert_same(weight.grad, (2 * (weight * x - (weight * x) * 2) * x).detach())


def test_random_numbers_move_on_as_in_eager() -> None:
    jitted = jit(lambda x: torch.rand(3) - x + torch.randn_like(x) * torch.randint(5, (3,)))
    program = jitted.__wrapped__
    for seed in range(5):
        x = torch.randn(3)
        torch.manual_seed(seed)
        found, after = jitted(x), torch.get_rng_state()
        torch.manual_seed(seed)
        assert_same(found, program(x))
        assert torch.equal(torch.get_rng_state(), after)
    assert jitted.statistics().replays == 4


def test_a_generator_of_the_users_moves_on_as_in_eager() -> None:
    ours, theirs = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    jitted = jit(lambda x: x - torch.rand(3, generator=ours))
    x = torch.zeros(3)
    for call in range(6):
        if call == 4:
            ours.manual_seed(9)
            theirs.manual_seed(9)
        assert_same(jitted(x), x - torch.rand(3, generator=theirs))
    assert jitted.statistics().replays == 5


def test_a_generator_given_as_an_argument_is_used() -> None:
    jitted = jit(lambda x, g: x - torch.rand(3, generator=g))
    given = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    twins = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    for call in range(8):
        which = call % 2
        assert_same(jitted(torch.zeros(3), given[which]), torch.zeros(3) - torch.rand(3, generator=twins[which]))


def test_the_number_of_threads_does_not_change_a_result() -> None:
    model = nn.BatchNorm1d(4)
    twin, jitted = copy.deepcopy(model), jit(model)
    torch.set_num_threads(2)
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(5, 4)
            assert_same(jitted(x), twin(x))


def test_reset_of_all_programs_starts_anew() -> None:
    jitted = jit(lambda x: x * 2)
    for _ in range(3):
        jitted(torch.ones(2))
    treeplay.reset()
    assert jitted.statistics().keys == ()
    jitted(torch.ones(2))
    assert jitted.statistics().eager_calls == 2


def test_dropout_that_drops_nothing_gives_its_argument_under_inference_mode() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        scaled = x * 2
        kept = torch.nn.functional.dropout(scaled, 0.1, training=False)
        return kept - ((x + 1) * 3 - x)  # which must not lie where `scaled` was

    jitted = jit(program)
    with torch.inference_mode():
        for _ in range(4):
            x = torch.randn(500)
            assert torch.equal(jitted(x), program(x))
    assert jitted.statistics().replays == 3


def test_tensors_of_numbers_may_be_made_under_inference_mode() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, torch.tensor([1, 0])) + (x * 2).detach_()

    jitted = jit(program)
    with torch.inference_mode():
        for _ in range(4):
            x = torch.randn(2, 3)
            assert_same(jitted(x), program(x))
    assert jitted.statistics().replays == 3


def test_a_compiled_module_inside_warns_of_no_hooks(recwarn: pytest.WarningsRecorder) -> None:
    model = torch.nn.Linear(3, 2)
    compiled, optimizer = torch.compile(model, backend="eager"), torch.optim.SGD(model.parameters(), 0.1)

    def program(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = compiled(x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = jit(program)
    for _ in range(4):
        step(torch.ones(2, 3))
    assert step.statistics().replays >= 2
    assert not [warning for warning in recwarn if "global hooks" in str(warning.message)]
