"""Programs that write, permute, exchange and alias, against eager: values, signs of zeros, strides and shared memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import treeplay
from support import assert_same, jit
from support.writes import Writes, make_writes, run
from treeplay.torch_compile import backend

COMPILED = pytest.mark.parametrize("front", ["inductor", "compile"])
DEVICES = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
_BLOCK = 20


def check(program: Writes, front: str, device: str = "cpu") -> None:
    outcome = run(program, front, device=device)
    assert outcome.difference is None, f"{program}\n{outcome.difference}"
    if front != "compile":
        assert outcome.replays and set(outcome.stages) <= {"bound", "recorded"}


def program_of(*body: str, results: str, state: str = "p, q = new(3, 3), new(3, 3)", calls: int = 4) -> Writes:
    arguments = "x, y = new(3, 3), new(3, 3)"
    return Writes(0, state, arguments, body, tuple(results.split(", ")), (None,) * calls)


@pytest.mark.parametrize("block", range(5))
def test_random_programs_of_writes_are_eagers(block: int) -> None:
    replayed = 0
    for seed in range(block * _BLOCK, (block + 1) * _BLOCK):
        program = make_writes(seed)
        outcome = run(program, "aten")
        assert outcome.difference is None, f"{program}\n{outcome.difference}"
        replayed += outcome.replays > 0
    assert replayed >= 0.7 * _BLOCK


@pytest.mark.compile
@pytest.mark.parametrize("seed", [20, 25])
def test_compiled_random_programs_of_writes_are_eagers(seed: int) -> None:
    check(make_writes(seed, lines=14), "inductor")


EVERYTHING = program_of(
    "t = x.clone(); x.copy_(y); y.copy_(t)",
    "t = state.p + 0; state.p.copy_(state.q.flip(0)); state.q.copy_(t.t())",
    "torch._foreach_mul_([x, x[1:]], 2.0)",
    "state.p.index_add_(0, torch.tensor([1, 2], device=x.device), state.p[:2].clone())",
    "state.q[0] = y[-1]; state.k = state.q.clone(); state.q.zero_().add_(-0.0)",
    "x.expand(3, 3)[1:].sub_(1e8)",
    "y[y > 0] = 0.25; y.copy_(y.roll(1, 0))",
    "v = x * 0.5",
    "w = v + 0",
    "z = torch.zeros_like(v).add_(v * -0.0)",
    "u = v.t().clone()",
    results="v, w, z, u, v.clone(), state.p.clone(), v.t(), v * 1, torch.complex(v, w).conj().imag + 0, "
    "torch._neg_view(v) * 1, -v, u + (-0.0), v * -0.0, torch.full_like(v, -0.0), F.pad(v, (1, 0), value=-0.0), "
    "v.remainder(2), torch.complex(v, w) + torch.complex(w, z)",
)


@pytest.mark.compile
@COMPILED
@DEVICES
def test_exchanges_no_ops_and_signs_of_zero_are_eagers(front: str, device: str) -> None:
    program = EVERYTHING
    if device == "cuda":  # whose eager kernel reads and writes what both tensors of the list share, in no order
        program = replace(program, body=tuple(line for line in program.body if "_foreach_" not in line))
    check(program, front, device)


@pytest.mark.compile
@DEVICES
def test_state_that_comes_to_share_memory_is_recorded_anew(device: str) -> None:
    program = program_of("state.p.mul_(0.5)", "state.q.sub_(state.p)", results="state.q * 2, x - state.p")
    check(replace(program, events=(*[None] * 4, "state.q.data = state.p.data", *[None] * 4)), "auto", device)


@pytest.mark.compile
def test_arguments_made_of_one_array_are_recorded_as_sharing_memory() -> None:
    shared = "array = new(4, 3).numpy(); x, y = torch.from_numpy(array[1:]), torch.from_numpy(array[:-1])"
    program = program_of("x.mul_(0.5)", "y.sub_(x)", results="y * 2")
    check(replace(program, events=(*[None] * 4, shared, *[None] * 4)), "auto")


@pytest.mark.parametrize("front", ["aten", "capture"])
@pytest.mark.parametrize("results", ["x * 2", "y[1:]", "y"])
def test_arguments_that_share_other_elements_are_recorded_anew(front: str, results: str) -> None:
    """What is written twice, or read after it was written, is so only where the slices lie as they did."""
    program = program_of("y[:-1] = y[:-1] * 2 - 1", "x[1:] = x[:-1] * 3", results=results, calls=0)
    ways = ("base[:3], base[1:]", "base[1:], base[:3]", "base[:3], base[1:]")
    events = [step for way in ways for step in (f"base = new(4, 3); x, y = {way}", *[None] * 3)]
    check(replace(program, events=tuple(events)), front)


@pytest.mark.parametrize("front", ["aten", "capture"])
def test_views_are_of_the_input_they_were_taken_of_where_inputs_no_longer_share_memory(front: str) -> None:
    apart = "x, y = new(3, 3), new(3, 3)"
    program = program_of(
        "v = x * 2 - 1", results="v, y.t(), state.q.t(), y[1:]", state="p = new(3, 3); q = p.t()", calls=0
    )
    events = (*[None] * 3, apart, *[None] * 3, "state.p.data = state.p.data.clone()", *[None] * 3)
    check(replace(program, arguments="base = new(4, 3); x, y = base[:3], base[1:]", events=events), front)


def test_a_program_that_writes_to_a_folded_tensor_runs_its_operators_in_order() -> None:
    folded = "x.expand(2, 3).fill_(1.5); y.unfold(0, 2, 1).mul_(2.0)"
    program = replace(program_of(folded, results="x - y, y * 2 - x"), arguments="x, y = new(3), new(3)")
    check(program, "inductor")


# Inductor of older releases takes this one apart itself, or not at all.
HAS_WHOLE_RRELU = torch.__version__ >= (2, 13)
DRAWS = (
    lambda t: t.exponential_(1.5),
    lambda t: t.cauchy_(0.5, 2.0),
    lambda t: t.geometric_(0.3),
    lambda t: t.log_normal_(0.2, 0.5),
)


@pytest.mark.compile
@DEVICES
@pytest.mark.parametrize("front", ["jit", "compile"])
def test_compiled_programs_draw_eagers_numbers_if_asked(
    front: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        drawn = [draw(x.clone()) * 2 - 1 for draw in DRAWS]
        if HAS_WHOLE_RRELU:
            drawn.append(torch.nn.functional.rrelu(x, training=True))
        return [*drawn, torch.nn.functional.dropout(x, 0.5) - x]

    torch._dynamo.reset()
    monkeypatch.setattr(treeplay.settings, "eager_random", True)
    if front == "jit":
        run = jit(program, lower="inductor")
    else:
        run = torch.compile(program, backend=backend, options={"eager_random": True})
    generators = [torch.default_generator, *(torch.cuda.default_generators if device == "cuda" else ())]
    for _ in range(4):
        x = torch.randn(3, 3, device=device)
        before = [generator.get_state() for generator in generators]
        with torch.no_grad():
            expected = program(x)
            after = [generator.get_state() for generator in generators]
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)
            found = run(x)
        torch.testing.assert_close(found, expected)
        assert_same([generator.get_state() for generator in generators], after, "generators")


def test_two_draws_run_in_order_where_compiled_code_would_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from treeplay.lower.inductor import artifact

    monkeypatch.setattr(artifact, "KEEPS_DRAWS_IN_ORDER", False)
    monkeypatch.setattr(treeplay.settings, "eager_random", True)
    run = jit(lambda x: (torch.rand(3) * x, x.clone().exponential_()), lower="inductor")
    for _ in range(3):
        run(torch.ones(3))
    (recording,) = run.statistics().keys[0].recordings
    assert recording.lowering == "aten" and "order" in recording.plan
