"""A few of the programs that were held back while treeplay was written; `python -m benchmarks.held_back` runs them all."""

from __future__ import annotations

import pytest
from benchmarks.held_back.play import judge
from benchmarks.held_back.programs import PROGRAMS

pytestmark = pytest.mark.programs

NAMES = (
    "attention.retention_state_in_place",
    "autodiff.quantization_aware_training",
    "dtypes.own_generator",
    "generative.heat_equation_with_two_buffers",
    "layers.batch_norm_momentum_changes",
    "modules.weights_tied",
    "python.attribute_of_self_changes",
    "python.state_written_before_an_exception",
    "tensors.argument_written_and_returned",
    "tensors.ping_pong_between_arguments",
    "tensors.parameter_data_rebound_between",
    "training.gradients_zeroed_in_place",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_held_back_program_is_eagers(name: str) -> None:
    outcome = judge(name, PROGRAMS[name], "aten", "cpu")
    assert outcome.difference is None and outcome.internal is None
    assert outcome.replays >= 1


def test_a_program_that_differs_is_told() -> None:
    """The judge itself: another random number on the second side."""
    calls = []

    def make():
        calls.append(None)
        return PROGRAMS["tensors.argument_written"]() if len(calls) == 1 else PROGRAMS["tensors.arguments_exchange"]()

    assert judge("two programs", make, "aten", "cpu").difference is not None
