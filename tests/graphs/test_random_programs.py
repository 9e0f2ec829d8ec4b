"""Random programs, recorded and replayed, against the same programs run eagerly, on both devices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings

from support import assert_same
from support.random_programs import PROGRAMS, is_valid, run
from support.recordings import record

# A program may do nothing at all, of which a recording warns.
pytestmark = [pytest.mark.programs, pytest.mark.filterwarnings("ignore:.*is empty")]
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def rng(dev: str) -> torch.Tensor:
    return torch.cuda.get_rng_state() if dev == "cuda" else torch.get_rng_state()


def make_state(dev: str, *, requires_grad: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(shape, device=dev, requires_grad=requires_grad) for shape in ((3, 4), (4,), ())]


@FEW
@given(program=PROGRAMS)
def test_G7_G8_G22_random_programs(dev: str, program: list[tuple[int, int, int]]) -> None:
    state, twins = make_state(dev), make_state(dev)
    warm = make_state(dev)
    assume(is_valid(lambda: run(program, *warm)))
    recording, found = record(dev, lambda: run(program, *state))
    assert_same(state, twins, "state after recording")
    torch.manual_seed(5)
    expected = []
    for _ in range(3):
        result = run(program, *twins)
        expected.append([[tensor.clone() for tensor in result], [tensor.clone() for tensor in twins], rng(dev)])
    torch.manual_seed(5)
    for number in range(3):
        recording.replay()
        assert_same([found, state, rng(dev)], expected[number], f"replay {number}")


@FEW
@given(program=PROGRAMS)
def test_G7_random_programs_with_their_gradients(dev: str, program: list[tuple[int, int, int]]) -> None:
    def gradients(w: torch.Tensor, v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = run(program, w * 1.5, v + 1, s * s)
        loss = sum((r.square().mean() for r in results if r.numel()), w.sum() - v.square().sum() + s)
        return torch.autograd.grad(loss, (w, v, s))

    state = make_state(dev, requires_grad=True)
    assume(is_valid(lambda: gradients(*state)))
    recording, found = record(dev, lambda: gradients(*state))
    for number in range(3):
        with torch.no_grad():
            for tensor in state:
                tensor.add_(0.125)
        torch.manual_seed(number)
        recording.replay()
        torch.manual_seed(number)
        assert_same(found, gradients(*state), f"replay {number}")
