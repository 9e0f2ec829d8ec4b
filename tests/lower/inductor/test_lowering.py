"""The compiled lowering against eager. Each recording compiles C++, so there are few and each shows much."""

from __future__ import annotations

import copy
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import treeplay
from support import Twins

pytestmark = pytest.mark.compile


def twins(make_model, make_optimizer):
    """An eager and a jitted step over equal models; both take (x, y)."""
    torch.manual_seed(0)
    model = make_model()
    other = copy.deepcopy(model)
    pair = []
    for m in (model, other):
        optimizer = make_optimizer(m.parameters())

        def step(x, y, m=m, optimizer=optimizer):
            optimizer.zero_grad()
            loss = F.cross_entropy(m(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(m.parameters(), 0.5)
            optimizer.step()
            return loss

        pair.append((m, optimizer, step))
    (m1, o1, eager), (m2, o2, replayed) = pair
    return m1, o1, eager, m2, o2, treeplay.jit(replayed, lower="inductor", on_refusal="raise")


def assert_states_close(first: nn.Module, second: nn.Module) -> None:
    for (name, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_adamw_follows_eager_through_a_changed_learning_rate():
    def mlp():
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))

    m1, o1, eager, m2, o2, replayed = twins(mlp, lambda p: torch.optim.AdamW(p, 1e-2))
    for index in range(8):
        if index == 5:
            o1.param_groups[0]["lr"] = o2.param_groups[0]["lr"] = 0.1
            o1.param_groups[0]["betas"] = o2.param_groups[0]["betas"] = (0.5, 0.9)
        x, y = torch.randn(5, 6), torch.randint(0, 4, (5,))
        torch.testing.assert_close(replayed(x, y), eager(x, y))
    assert_states_close(m1, m2)
    for p, q in zip(m1.parameters(), m2.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-5)
        assert o2.state[q]["step"] == o1.state[p]["step"] == 8
    assert replayed.statistics().recordings == 1


def test_a_convolutional_step_updates_running_statistics():
    def cnn():
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 4)
        )

    m1, _, eager, m2, _, replayed = twins(cnn, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True))
    for _ in range(5):
        x, y = torch.randn(6, 1, 8, 8), torch.randint(0, 4, (6,))
        torch.testing.assert_close(replayed(x, y), eager(x, y), rtol=1e-4, atol=1e-5)
    assert_states_close(m1, m2)
    assert m2[1].num_batches_tracked == 5


def dropout_step():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5))

    def program(x):
        with torch.no_grad():
            return model(x)

    return program


def test_random_numbers_are_eagers_with_eager_random():
    program = dropout_step()
    x = torch.randn(4, 8)
    with treeplay.settings.changed(eager_random=True):
        replayed = treeplay.jit(program, lower="inductor", on_refusal="raise")
        for seed in range(4):
            torch.manual_seed(seed)
            expected = program(x), program(x)
            torch.manual_seed(seed)
            found = replayed(x), replayed(x)
            torch.testing.assert_close(found, expected)


def test_random_numbers_are_fresh_and_reproducible_by_default():
    replayed = treeplay.jit(dropout_step(), lower="inductor", on_refusal="raise")
    x = torch.randn(4, 8)
    replayed(x), replayed(x)
    torch.manual_seed(3)
    first = replayed(x), replayed(x)
    torch.manual_seed(3)
    second = replayed(x), replayed(x)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], first[1])


def test_written_state_is_reported_to_autograd():
    _, _, _, m2, _, replayed = twins(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4)), lambda p: torch.optim.SGD(p, 0.1)
    )
    x, y = torch.randn(2, 3), torch.randint(0, 4, (2,))
    for _ in range(3):
        replayed(x, y)
    pending = m2(x).sum()
    replayed(x, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pending.backward()


def test_what_the_compiler_cannot_take_runs_as_operators():
    """Inputs that share written memory are the aten lowering's under "auto"."""
    base = torch.randn(6)

    def program(a, b):
        a.mul_(2)
        return b - a

    replayed = treeplay.jit(program, on_refusal="raise")
    eager = base.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            expected = program(eager[:4], eager[2:])
            assert torch.equal(replayed(base[:4], base[2:]), expected)
    assert torch.equal(base, eager)
    assert "aten" in replayed.explain()


def test_programs_are_compiled_in_several_threads_at_once() -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            compiled = treeplay.jit(lambda x: (x * number).sin() - number, lower="inductor")
            for _ in range(3):
                x = torch.randn(5)
                torch.testing.assert_close(compiled(x), (x * number).sin() - number)
            assert compiled.statistics().recordings == 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
        assert not thread.is_alive()
    assert not errors


def test_compiling_draws_no_random_numbers() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    compiled = treeplay.jit(lambda x: (x @ x).relu() - 1, lower="inductor")
    x = torch.arange(16.0).reshape(4, 4)
    for _ in range(3):
        compiled(x)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_recurrent_layer_is_trained_by_its_operators() -> None:
    """Compiled code calls them with gradients off: without what they keep for the backward, the replay raised."""

    def make(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            loss = model(x)[0].square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    model = nn.LSTM(4, 4)
    both = Twins(make, model, torch.optim.SGD(model.parameters(), lr=0.1), lower="auto")
    both.calls(4, lambda: (torch.randn(3, 2, 4),))
    recording = both.statistics.keys[0].recordings[0]
    assert recording.lowering == "aten"
    assert "only while gradients are on" in recording.passed_over[0]


@pytest.mark.gpu
def test_a_step_of_adam_over_many_parameters_is_few_kernels_and_reads_its_state_once() -> None:
    parameters = [nn.Parameter(torch.randn(300, 200, device="cuda")) for _ in range(30)]
    optimizer = torch.optim.AdamW(parameters, 1e-2)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    step = treeplay.jit(lambda: optimizer.step(), lower="inductor", on_refusal="raise")
    for _ in range(4):
        step()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    assert step.statistics().replays >= 2
    kernels = [event.name for event in seen.events() or () if event.device_type == torch.autograd.DeviceType.CUDA]
    # Not one for each parameter's mean of squares, nor for its powers of the betas.
    assert 0 < len(kernels) <= 8, kernels
