"""Random programs against eager, bit for bit: models, optimizers, in-place operators, views, aliasing arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import Inference, Training, inference_programs, training_programs
from support import Twins, assert_same, jit

settings.register_profile(
    "treeplay",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
settings.load_profile("treeplay")


@settings(max_examples=12)
@given(training_programs(), st.integers(0, 2**16))
def test_a_random_training_program_is_eagers(program: Training, seed: int) -> None:
    train(program, seed)


@pytest.mark.soak
@settings(max_examples=100)
@given(training_programs(), st.integers(0, 2**16))
def test_more_random_training_programs_are_eagers(program: Training, seed: int) -> None:
    train(program, seed)


def train(program: Training, seed: int) -> None:
    torch.manual_seed(seed)
    model = program.model()
    pair = Twins(program.step, model, program.optimizer(model.parameters()))
    for call in range(5):
        if call == 3:
            for owners in (pair.owners, pair.eager_owners):
                program.disturb(*owners)
        pair.call(program.batch())
    assert pair.statistics.replays >= 3


@settings(max_examples=40)
@given(inference_programs(), st.integers(0, 2**16))
def test_a_random_program_of_views_and_writes_is_eagers(program: Inference, seed: int) -> None:
    torch.manual_seed(seed)
    state, twin_state = (program.state() for _ in range(2))
    for tensor, twin in zip(state, twin_state, strict=True):
        twin.copy_(tensor)
    jitted, eager = jit(program.over(state)), program.over(twin_state)
    kept: list[tuple[Any, Any]] = []
    for _ in range(5):
        base = torch.randint(-4, 5, (program.length,)).float()
        twin_base = base.clone()
        expected, found = outcome(eager, program.arguments(twin_base)), outcome(jitted, program.arguments(base))
        assert_same(found, expected)
        assert_same([base, *state], [twin_base, *twin_state], "memory")
        for earlier, copied in kept:
            assert_same(earlier, copied, "a result of an earlier call")
        if program.results_are_fresh:
            kept.append((found, [tensor.clone() for tensor in expected]))


def outcome(program: Callable[..., Any], args: list[torch.Tensor]) -> Any:
    """The result, or the kind of error."""
    try:
        return program(*args)
    except RuntimeError as error:
        return type(error).__name__
